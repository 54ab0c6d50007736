"""Connect a command to the services, and define the options for their addresses."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, TypeVar

import grpc
import typer

from services.api.ids import TopicIdPartition, uuid_from_text, uuid_to_text
from services.api.offset_queries import OffsetService
from services.api.remote_log_manager import RemoteLogManager, all_descriptions
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, all_partitions
from services.api.remote_storage_manager import RemoteStorageManager
from services.api.segment_objects import SegmentObjects
from services.cli.output import CommandError, Format, print_json, print_table
from services.cli.security import chosen_security
from services.common.client_security import SecurityOptions, each_address
from services.local.data_directory import DataDirectoryError, default_directory, running_stack
from services.rpc.client.channel import open_channel
from services.rpc.client.log import RemoteLogManagerClient
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from services.rpc.client.storage import RemoteStorageManagerClient, SegmentObjectsClient

T = TypeVar("T")

_TOPIC_PARTITION = re.compile(r"(?:(?P<id>[^:]+):)?(?P<topic>.+)-(?P<partition>\d{1,10})")

_ADDRESS_HELP = (
    "HOST:PORT, dns:///HOST:PORT or ipv4:IP:PORT,IP:PORT. Default: that of the running "
    "`sediment up`."
)
_SERVICES = {
    each: Annotated[str | None, typer.Option(envvar=f"SEDIMENT_{each.upper()}", help=_ADDRESS_HELP)]
    for each in ("rsm", "rlmm", "rlm")
}


def command_group(help: str | None = None) -> typer.Typer:
    """Return the object with which a file's commands register."""
    return typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=help)


@contextmanager
def connected_rlmm(
    address: str | None, data_dir: Path | None
) -> Iterator[RemoteLogMetadataManager]:
    with _channel("rlmm", address, data_dir) as (channel, where):
        yield RemoteLogMetadataManagerClient(channel, where)


@contextmanager
def connected_rlm(address: str | None, data_dir: Path | None) -> Iterator[OffsetService]:
    with _channel("rlm", address, data_dir) as (channel, where):
        yield RemoteLogManagerClient(channel, where)


@contextmanager
def _channel(
    service: str, address: str | None, data_dir: Path | None
) -> Iterator[tuple[grpc.Channel, str]]:
    where = address or address_of(service, data_dir)
    security = security_options(each_address(where), data_dir).security_for(where)
    with open_channel(where, security) as channel:
        yield channel, where


def security_options(addresses: Sequence[str], data_dir: Path | None) -> SecurityOptions:
    """Return what the user chose; else the files of the `sediment up` that has these addresses."""
    chosen = chosen_security()
    if chosen.is_chosen:
        return chosen
    try:
        endpoints = running_stack(data_dir)
    except DataDirectoryError:
        # Of another user, perhaps: `address_of` has reported it if the address came from there.
        return chosen
    if endpoints is None or not endpoints.serves(addresses):
        return chosen
    return endpoints.security


def address_of(service: str, data_dir: Path | None) -> str:
    """Return HOST:PORT of rsm, rlmm or rlm in the `sediment up` that runs on this machine.

    Raises:
        CommandError: no `sediment up` is running, or it does not run this service.
    """
    endpoints = running_stack(data_dir)
    if endpoints is None:
        raise CommandError(
            f"no `sediment up` is running on {data_dir or default_directory()}; start one, point "
            f"--data-dir at its directory, or pass --{service} HOST:PORT"
        )
    address = str(getattr(endpoints, service))
    if not address:
        raise CommandError(
            f"the stack on {endpoints.data_directory} runs no {service.upper()}; "
            f"pass --{service} HOST:PORT"
        )
    return address


def find_partition(manager: RemoteLogMetadataManager, name: str) -> TopicIdPartition:
    """Find a partition by TOPIC-PARTITION or TOPIC_ID:TOPIC-PARTITION, as RLMM names it.

    Raises:
        CommandError: the name has another form, is unknown, or belongs to several topics.
        InvalidRequestError: TOPIC_ID is not an id.
    """

    def known(topic: str) -> Iterator[TopicIdPartition]:
        return (each.topic_id_partition for each in all_partitions(manager, topic=topic))

    return _named_partition(name, known)


def find_readable_partition(rlm: RemoteLogManager, name: str, call: "Call") -> TopicIdPartition:
    """Find a partition that RLM serves; one that RLM does not know is looked up in RLMM.

    Raises as find_partition.
    """

    def known(topic: str) -> Iterator[TopicIdPartition]:
        yield from (each.topic_id_partition for each in all_descriptions(rlm, [topic]))

    try:
        return _named_partition(name, known)
    except UnknownPartitionError:
        with call.rlmm_client() as metadata:
            return find_partition(metadata, name)


class UnknownPartitionError(CommandError):
    """The error for a partition that the service does not know."""


def _named_partition(
    name: str, known: Callable[[str], Iterable[TopicIdPartition]]
) -> TopicIdPartition:
    """Find a partition by its name among the `known` ones of its topic."""
    match = _TOPIC_PARTITION.fullmatch(name)
    if match is None:
        raise CommandError(f"{name!r} is not TOPIC-PARTITION, for example orders-0")
    topic, partition = match["topic"], int(match["partition"])
    if match["id"]:
        return TopicIdPartition(uuid_from_text(match["id"], "topic id"), topic, partition)
    found = [tp for tp in known(topic) if tp.partition == partition]
    if not found:
        raise UnknownPartitionError(
            f"the tier has no partition {name}; `sediment topics list` lists its topics. For a "
            f"partition that was removed, pass TOPIC_ID:{name}; `sediment partitions -o json` "
            "shows topic ids"
        )
    if len(found) > 1:
        ids = ", ".join(f"{uuid_to_text(tp.topic_id)}:{name}" for tp in found)
        raise CommandError(f"several topics have had the name {topic}; pass one of {ids}")
    return found[0]


JsonOrTable = Annotated[
    Format, typer.Option("-o", "--output", help="A table for people or JSON for scripts.")
]

DataDir = Annotated[
    Path | None,
    typer.Option(
        help="Data directory of `sediment up`. Default: the user's data directory, or "
        "/var/tmp/sediment for root."
    ),
]

TopicPartition = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC-PARTITION",
        help="For example orders-0, or TOPIC_ID:orders-0 if several topics have had this name.",
    ),
]

Topic = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC",
        help="For example orders, or TOPIC_ID:orders if several topics have had this name.",
    ),
]

Topics = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TOPIC]...",
        help="For example orders, or TOPIC_ID:orders if several topics have had this name. "
        "Default: all topics.",
    ),
]


Locations = Annotated[
    list[int] | None,
    typer.Option(
        min=0,
        max=65_535,
        help="Number of a registered storage location of RSM; may be repeated. Default: the "
        "location that receives new segments.",
    ),
]


@dataclass(frozen=True, slots=True)
class Call:
    """The options that commands share, the services that they lead to, and how to print."""

    rsm: str | None = None
    rlmm: str | None = None
    rlm: str | None = None
    data_dir: Path | None = None
    output: Format = Format.TABLE

    @property
    def is_json(self) -> bool:
        return self.output is Format.JSON

    def address(self, service: str) -> str:
        """Return the target that was given; else that of the running `sediment up`."""
        return getattr(self, service) or address_of(service, self.data_dir)

    def rlmm_client(self) -> AbstractContextManager[RemoteLogMetadataManager]:
        return connected_rlmm(self.rlmm, self.data_dir)

    def rlm_client(self) -> AbstractContextManager[OffsetService]:
        return connected_rlm(self.rlm, self.data_dir)

    @contextmanager
    def rsm_clients(self) -> Iterator[tuple[RemoteStorageManager, SegmentObjects]]:
        """Connect to RSM, once for both of its interfaces."""
        with _channel("rsm", self.rsm, self.data_dir) as (channel, where):
            yield RemoteStorageManagerClient(channel, where), SegmentObjectsClient(channel, where)

    @contextmanager
    def tier_clients(
        self,
    ) -> Iterator[tuple[RemoteStorageManager, SegmentObjects, RemoteLogMetadataManager]]:
        with self.rsm_clients() as (store, objects), self.rlmm_client() as metadata:
            yield store, objects, metadata

    def show(
        self,
        document: object,
        title: str,
        columns: Sequence[str],
        rows: Iterable[Sequence[object]],
    ) -> None:
        """Print a JSON document, or its table."""
        if self.is_json:
            print_json(document)
        else:
            print_table(title, columns, rows)

    def show_each(
        self,
        items: Iterable[T],
        as_json: Callable[[T], object],
        title: str,
        columns: Sequence[str],
        as_row: Callable[[T], Sequence[object]],
    ) -> None:
        """Print a JSON document for each item as it arrives, or a table of all."""
        if not self.is_json:
            print_table(title, columns, map(as_row, items))
            return
        for item in items:
            print_json(as_json(item))


def with_services(
    *services: str, has_data_dir: bool = False, has_output: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a Call: the addresses of these services, --data-dir if any, and -o."""
    options: dict[str, tuple[object, object]] = {each: (_SERVICES[each], None) for each in services}
    if services or has_data_dir:
        options["data_dir"] = (DataDir, None)
    if has_output:
        options["output"] = (JsonOrTable, Format.TABLE)
    shared = [
        Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=default)
        for name, (kind, default) in options.items()
    ]

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**given: Any) -> None:
            chosen = {each.name: given.pop(each.name) for each in shared if each.name in given}
            command(call=Call(**chosen), **given)

        own = [
            each.replace(kind=Parameter.KEYWORD_ONLY)
            for each in signature(command).parameters.values()
            if each.name != "call"
        ]
        every = [*own, *shared]
        run.__signature__ = Signature(every)  # type: ignore[attr-defined]  # read by typer
        run.__annotations__ = {each.name: each.annotation for each in every}
        return run

    return decorated
