"""Provide RSM over files and RLM over both services as targets, with small worlds."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from uuid import UUID

import grpc
from crc32c import crc32c

from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.remote_log_manager import PartitionRole, all_descriptions
from services.api.segment_objects import ObjectQuery
from services.api.validation import seal
from services.rlm.servicer import RemoteLogManagerServicer
from services.rlmm.database.engine import create_database_engine
from services.rpc.client.log import RemoteLogManagerClient
from services.rpc.client.storage import RemoteStorageManagerClient, SegmentObjectsClient
from services.rpc.converters.shared import metadata_to_proto, topic_id_partition_to_proto
from services.rsm.factory import build_manager
from services.rsm.servicer import add_to_server
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import Files, a_segment, copied
from tests.deep.fuzzing.campaign import Target
from tests.deep.fuzzing.database_digest import DatabaseDigest
from tests.deep.fuzzing.world import World
from tests.harness.callback_rlm import callback_rlm, send_role
from tests.harness.served import served
from tests.harness.ship_stack import running_stack
from tests.unit.rlm.kafka_bytes import three_segments, write_log_dir
from tieredstorage.v1 import remote_log_manager_pb2_grpc as log_grpc
from tieredstorage.v1 import remote_storage_manager_pb2 as storage_pb

_SEGMENTS = 5
_PARTITIONS = 3
_FORGED = ("", "\0", "a\0b", "/", "../..", "\uffff", "a" * 1_024)
"""What a client may put into a page token: no secret is needed to seal one."""


@contextmanager
def running_rsm(directory: Path) -> Iterator[Target]:
    """Serve an RSM over the file system in this process."""
    objects = directory / "objects"
    objects.mkdir(parents=True)
    settings = RsmSettings(backend="filesystem", directory=objects)
    # Without URLs, as such a store is, but asked for them: the settings forbid it.
    asked = settings.model_copy(update={"direct_reads": True})
    with closing(build_manager(asked)) as manager:

        def add(server: grpc.Server) -> None:
            add_to_server(manager, server)

        with served(add, "tieredstorage.v1.RemoteStorageManager") as (channel, address):
            client = RemoteStorageManagerClient(channel, address)
            yield Target(
                channel,
                partial(_world_of_objects, client, SegmentObjectsClient(channel, address)),
                partial(_files_below, objects),
                partial(_still_copies, client),
            )


def _world_of_objects(
    client: RemoteStorageManagerClient, objects: SegmentObjectsClient, text: str
) -> World:
    random = Random(text)
    topic_id = UUID(int=random.getrandbits(128), version=4)
    segments = []
    for number in range(_SEGMENTS):
        files = Files(random.randbytes(random.choice([0, 1, 5_000])))
        planned = a_segment(len(files.log), 100 * number, topic_id)
        attempt = UUID(int=random.getrandbits(128), version=4)
        name = RemoteLogSegmentId(planned.topic_id_partition, attempt)
        segments.append(copied(client, files, replace(planned, remote_log_segment_id=name)))
    own = [
        each
        for each in objects.list_segment_objects(ObjectQuery()).objects
        if each.name.topic_id == topic_id
    ]
    token = objects.list_segment_objects(ObjectQuery(), page_size=1).next_page_token
    return World(
        partitions=[topic_id_partition_to_proto(segments[0].topic_id_partition)],
        segments=[metadata_to_proto(each) for each in segments],
        page_tokens=[token, *(seal(ObjectQuery(), text.encode()) for text in _FORGED)],
        objects=[
            storage_pb.ObjectLocation(location_id=each.location.location_id, key=each.location.key)
            for each in own
        ],
    )


def _files_below(directory: Path) -> dict[str, int]:
    """Return a checksum of each file, temporary ones too."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): crc32c(path.read_bytes()) for path in files}


def _still_copies(client: RemoteStorageManagerClient) -> bool:
    files = Files(b"a log")
    metadata = copied(client, files)
    read = b"".join(client.fetch_log_segment(metadata, 0))
    client.delete_log_segment_data(metadata)
    return read == files.log


@contextmanager
def running_rlm(database_url: str, directory: Path) -> Iterator[Target]:
    """Serve an RLM that learns of leadership by calls; its background tasks do not run."""
    log_dir = write_log_dir(directory / "logs")
    names = [
        TopicIdPartition(UUID(int=7 + number, version=4), "fuzzed", number)
        for number in range(_PARTITIONS)
    ]
    for name in names:
        three_segments(log_dir, name)
    engine = create_database_engine(database_url)
    with (
        running_stack(database_url, directory / "objects") as stack,
        engine.connect() as connection,
    ):
        connection.execution_options(isolation_level="AUTOCOMMIT")
        digest = DatabaseDigest(connection)
        stack.ship(log_dir)
        rlm = callback_rlm(stack, log_dir)

        def add(server: grpc.Server) -> None:
            log_grpc.add_RemoteLogManagerServicer_to_server(RemoteLogManagerServicer(rlm), server)

        with served(add, "tieredstorage.v1.RemoteLogManager") as (channel, address):
            client = RemoteLogManagerClient(channel, address)

            def make_world(text: str) -> World:
                return _world_of_logs(client, names, text)

            def kept() -> dict[str, object]:
                described = {
                    str(each.topic_id_partition): each for each in all_descriptions(client)
                }
                return {**digest.take(), **described}

            yield Target(channel, make_world, kept, lambda: list(all_descriptions(client)) != [])
    engine.dispose()


def _world_of_logs(
    client: RemoteLogManagerClient, names: Sequence[TopicIdPartition], text: str
) -> World:
    for name in names[:-1]:
        send_role(client, PartitionRole.LEADER, 1, name)
    unknown = TopicIdPartition(UUID(int=Random(text).getrandbits(128), version=4), "fuzzed", 0)
    page = client.describe_partitions([], page_size=1)
    return World(
        partitions=[topic_id_partition_to_proto(name) for name in (*names, unknown)],
        segments=[],
        page_tokens=[page.next_page_token],
    )
