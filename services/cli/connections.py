"""Connect a command to services: by address, or of a running `sediment up`."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from services.api.ids import TopicIdPartition, uuid_from_text, uuid_to_text
from services.api.remote_log_manager import RemoteLogManager
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, all_partitions
from services.api.remote_storage_manager import RemoteStorageManager, SegmentObjects
from services.cli.output import CommandError, Format
from services.local.data_directory import default_directory, running_stack
from services.rpc.channels import open_channel
from services.rpc.client.log import RemoteLogManagerClient
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from services.rpc.client.storage import RemoteStorageManagerClient, SegmentObjectsClient

_TOPIC_PARTITION = re.compile(r"(?:(?P<id>[^:]+):)?(?P<topic>.+)-(?P<partition>\d{1,10})")


@contextmanager
def connected_rsm(address: str | None, data_dir: Path | None) -> Iterator[RemoteStorageManager]:
    where = address or address_of("rsm", data_dir)
    with open_channel(where) as channel:
        yield RemoteStorageManagerClient(channel, where)


@contextmanager
def connected_segment_objects(
    address: str | None, data_dir: Path | None
) -> Iterator[SegmentObjects]:
    where = address or address_of("rsm", data_dir)
    with open_channel(where) as channel:
        yield SegmentObjectsClient(channel, where)


@contextmanager
def connected_rlmm(
    address: str | None, data_dir: Path | None
) -> Iterator[RemoteLogMetadataManager]:
    where = address or address_of("rlmm", data_dir)
    with open_channel(where) as channel:
        yield RemoteLogMetadataManagerClient(channel, where)


@contextmanager
def connected_rlm(address: str | None, data_dir: Path | None) -> Iterator[RemoteLogManager]:
    where = address or address_of("rlm", data_dir)
    with open_channel(where) as channel:
        yield RemoteLogManagerClient(channel, where)


def address_of(service: str, data_dir: Path | None) -> str:
    """HOST:PORT of rsm, rlmm or rlm in the `sediment up` that runs here.

    Raises:
        CommandError: none runs.
    """
    endpoints = running_stack(data_dir)
    if endpoints is None:
        raise CommandError(
            f"no `sediment up` is running on {data_dir or default_directory()}; start it, name its "
            f"--data-dir, or use --{service} HOST:PORT"
        )
    address = str(getattr(endpoints, service))
    if not address:
        raise CommandError(f"what runs here has no {service}; use --{service} HOST:PORT")
    return address


def find_partition(manager: RemoteLogMetadataManager, name: str) -> TopicIdPartition:
    """The known partition that `name` means: TOPIC-PARTITION, or TOPIC_ID:TOPIC-PARTITION.

    Raises:
        CommandError: not of this form, not known, or the name of several topics.
        InvalidRequestError: TOPIC_ID is none.
    """
    match = _TOPIC_PARTITION.fullmatch(name)
    if match is None:
        raise CommandError(f"{name!r} is not TOPIC-PARTITION, for example orders-0")
    topic, partition = match["topic"], int(match["partition"])
    if match["id"]:
        return TopicIdPartition(uuid_from_text(match["id"], "topic id"), topic, partition)
    found = [
        summary.topic_id_partition
        for summary in all_partitions(manager)
        if summary.topic_id_partition.topic == topic
        and summary.topic_id_partition.partition == partition
    ]
    if not found:
        raise CommandError(
            f"no partition {name} is known; `sediment topics list` lists the topics that are. One "
            f"that was removed is named TOPIC_ID:{name}, and `sediment partitions -o json` tells "
            "the ids"
        )
    if len(found) > 1:
        ids = ", ".join(f"{uuid_to_text(tp.topic_id)}:{name}" for tp in found)
        raise CommandError(f"several topics have had this name; say which: {ids}")
    return found[0]


JsonOrTable = Annotated[Format, typer.Option("-o", "--output", help="For people or for scripts.")]

DataDir = Annotated[
    Path | None,
    typer.Option(
        help="Where `sediment up` keeps its data; by default the user's data directory, root's is "
        "/var/tmp/sediment."
    ),
]

TopicPartition = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC-PARTITION", help="For example orders-0; TOPIC_ID:orders-0 where names recur."
    ),
]

Topic = Annotated[
    str,
    typer.Argument(metavar="TOPIC", help="For example orders; TOPIC_ID:orders where names recur."),
]

_ADDRESS_HELP = "HOST:PORT; by default that of a running `sediment up`."
Rsm = Annotated[str | None, typer.Option(envvar="SEDIMENT_RSM", help=_ADDRESS_HELP)]
Rlmm = Annotated[str | None, typer.Option(envvar="SEDIMENT_RLMM", help=_ADDRESS_HELP)]
Rlm = Annotated[str | None, typer.Option(envvar="SEDIMENT_RLM", help=_ADDRESS_HELP)]

Locations = Annotated[
    list[int] | None,
    typer.Option(
        min=0,
        max=65_535,
        help="A registered location of RSM to look at; may be repeated. By default the one that "
        "new segments go to.",
    ),
]
