"""Provide a tier that tests fill by hand: segments of a kilobyte, with any times and states."""

import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from sqlalchemy import Engine, text

from services.api.errors import RetriableRemoteStorageError
from services.api.ids import RemoteLogSegmentId, TopicIdPartition, random_uuid
from services.api.lineage import Lineage
from services.api.partitions import (
    PartitionReport,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, all_segments
from services.api.remote_storage_manager import IndexType, RemoteStorageManager
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    segment_leader_epochs,
)
from services.common.client_security import PLAINTEXT, ClientSecurity
from services.local.seaweedfs import S3Endpoint
from services.local.stack import ServiceProcess
from services.rpc.client.channel import open_channel
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from services.rpc.client.storage import RemoteStorageManagerClient
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.manager import ObjectRemoteStorageManager
from tests.contract.remote_storage_manager_contract import Files
from tests.harness.eventually import eventually
from tests.harness.stores import keys_in

BROKER = 1
EPOCH = 0
OFFSETS = 100
SIZE_BYTES = 1_000
HOUR_MS = 3_600_000
SWEPT = {"sediment.retention.owner": "sweep"}
_FILES = Files(bytes(SIZE_BYTES), dict.fromkeys(IndexType, b"index"))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class SmallTier:
    """An RSM and an RLMM, in this process or elsewhere."""

    rsm: RemoteStorageManager
    rlmm: RemoteLogMetadataManager

    def fill(
        self,
        tp: TopicIdPartition,
        segments: int,
        *,
        first: int = 0,
        age_ms: int = 10 * HOUR_MS,
        **fields: Any,
    ) -> list[RemoteLogSegmentMetadata]:
        """Copy and finish segments `first`, `first` + 1, ... of OFFSETS offsets each.

        All of them are `age_ms` old.
        """
        made = [
            segment(tp, number, max_timestamp_ms=now_ms() - age_ms, **fields)
            for number in range(first, first + segments)
        ]
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(self.copy, made))

    def copy(
        self, metadata: RemoteLogSegmentMetadata, files: Files = _FILES
    ) -> RemoteLogSegmentMetadata:
        """Copy a segment from its first row to COPY_SEGMENT_FINISHED."""
        self.rlmm.add_remote_log_segment_metadata(metadata)
        return self.finish(metadata, files)

    def finish(
        self, metadata: RemoteLogSegmentMetadata, files: Files = _FILES
    ) -> RemoteLogSegmentMetadata:
        custom_metadata = self.rsm.copy_log_segment_data(metadata, files.data())
        finished = RemoteLogSegmentMetadataUpdate(
            metadata.remote_log_segment_id,
            now_ms(),
            RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
            BROKER,
            custom_metadata,
        )
        self.rlmm.update_remote_log_segment_metadata(finished)
        return replace(metadata, custom_metadata=custom_metadata, state=finished.state)

    def move(
        self, metadata: RemoteLogSegmentMetadata, state: RemoteLogSegmentState
    ) -> RemoteLogSegmentMetadata:
        update = RemoteLogSegmentMetadataUpdate(
            metadata.remote_log_segment_id, now_ms(), state, BROKER
        )
        self.rlmm.update_remote_log_segment_metadata(update)
        return replace(metadata, state=state)

    def report(self, tp: TopicIdPartition, segments: int, **fields: Any) -> None:
        """Send the leader's report of a log whose first `segments` segments are in the tier."""
        values: dict[str, Any] = {
            "broker_id": BROKER,
            "leader_epoch": EPOCH,
            "report_number": time.monotonic_ns(),
            "lineage": Lineage(segment_leader_epochs([(EPOCH, 0)])),
            "local_log_start_offset": 0,
            "log_end_offset": segments * OFFSETS + 1,
            "high_watermark": segments * OFFSETS + 1,
            "last_stable_offset": segments * OFFSETS + 1,
            "only_local_bytes": 0,
            "copied_through_offset": segments * OFFSETS - 1,
            **fields,
        }
        [outcome] = self.rlmm.report_partition_state([PartitionReport(tp, **values)])
        assert not isinstance(outcome, Exception), outcome

    def delete(self, *segments: RemoteLogSegmentMetadata) -> None:
        """Delete finished segments, as one process deletes what another has read."""
        for each in segments:
            self.move(each, RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
            self.rsm.delete_log_segment_data(each)
            self.move(each, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)

    def settings(self, topic_id: UUID, entries: Mapping[str, str]) -> None:
        """Replace a topic's settings; the sweep enforces its retention."""
        self.rlmm.put_topic_config(topic_id, {**SWEPT, **entries}, now=True)

    def mark_deleted(self, tp: TopicIdPartition) -> None:
        marked = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
        self.rlmm.put_remote_partition_delete_metadata(
            RemotePartitionDeleteMetadata(tp, marked, now_ms(), BROKER)
        )

    def remove(self, tp: TopicIdPartition, *segments: RemoteLogSegmentMetadata) -> None:
        """Remove a partition whose finished segments these are."""
        for state in RemotePartitionDeleteState:
            if state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
                self.delete(*segments)
            self.rlmm.put_remote_partition_delete_metadata(
                RemotePartitionDeleteMetadata(tp, state, now_ms(), BROKER)
            )

    def rows(self, *partitions: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
        return [row for tp in partitions for row in all_segments(self.rlmm, tp)]


@dataclass
class FileTier(SmallTier):
    """A tier in this process whose objects are files, and a partition of a topic of its own."""

    rsm: ObjectRemoteStorageManager
    store: FilesystemStorage
    tp: TopicIdPartition = field(default_factory=lambda: a_topic("orders")[0])

    def object_keys(self) -> list[str]:
        return sorted(keys_in(self.store, ""))


@dataclass
class Tier(SmallTier):
    """A tier of processes that a test may kill."""

    rsm_process: ServiceProcess
    rlmm_process: ServiceProcess
    s3: S3Endpoint
    bucket: str
    engine: Engine

    @property
    def processes(self) -> list[ServiceProcess]:
        return [self.rsm_process, self.rlmm_process]

    def start_rlmm(self) -> None:
        """Start RLMM again, and wait until this process's channel to it has recovered."""

        def answers() -> bool:
            try:
                self.rlmm.list_partitions(page_size=1)
            except RetriableRemoteStorageError:
                return False
            return True

        self.rlmm_process.start()
        eventually(answers)

    def objects(self, *topic_ids: UUID) -> dict[str, str]:
        """Return each object's key and ETag, of these topics."""
        prefixes = tuple(topic_id.hex for topic_id in topic_ids)
        listed = self.s3.client().list_objects(self.bucket, recursive=True)
        return {
            str(item.object_name): str(item.etag)
            for item in listed
            if str(item.object_name).replace("-", "").startswith(prefixes)
        }

    @contextmanager
    def held_up(self, tp: TopicIdPartition) -> Iterator[None]:
        """Block all changes of the partition in RLMM during the block: its calls wait."""
        lock = text("SELECT FROM partitions WHERE topic_id = :id AND partition = :p FOR UPDATE")
        with self.engine.begin() as connection:
            connection.execute(lock, {"id": tp.topic_id, "p": tp.partition})
            yield


def segment(tp: TopicIdPartition, number: int, **fields: Any) -> RemoteLogSegmentMetadata:
    """Return the `number`-th segment of a log in epoch EPOCH, not copied yet."""
    start = number * OFFSETS
    values: dict[str, Any] = {
        "max_timestamp_ms": now_ms(),
        "broker_id": BROKER,
        "event_timestamp_ms": now_ms(),
        "segment_leader_epochs": segment_leader_epochs([(EPOCH, start)]),
        "segment_size_in_bytes": SIZE_BYTES,
        "broker_leader_epoch": EPOCH,
        **fields,
    }
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(tp, random_uuid()), start, start + OFFSETS - 1, **values
    )


def ids(segments: Iterable[RemoteLogSegmentMetadata]) -> list[UUID]:
    return [each.remote_log_segment_id.id for each in segments]


def a_topic(name: str = "", partitions: int = 1) -> list[TopicIdPartition]:
    """Return a new topic's partitions; by default no other topic has its name."""
    topic_id = random_uuid()
    return [TopicIdPartition(topic_id, name or f"t{topic_id.hex}", p) for p in range(partitions)]


@contextmanager
def running_tier(
    rsm: ServiceProcess,
    rlmm: ServiceProcess,
    s3: S3Endpoint,
    bucket: str,
    engine: Engine,
    security: ClientSecurity = PLAINTEXT,
) -> Iterator[Tier]:
    """Start both services in parallel, and stop them at the end; `security` is of our clients."""
    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda service: service.start(), [rsm, rlmm]))
        with (
            open_channel(rsm.address, security) as to_rsm,
            open_channel(rlmm.address, security) as to_rlmm,
        ):
            yield Tier(
                RemoteStorageManagerClient(to_rsm, rsm.address),
                RemoteLogMetadataManagerClient(to_rlmm, rlmm.address),
                rsm,
                rlmm,
                s3,
                bucket,
                engine,
            )
    finally:
        rsm.kill()
        rlmm.kill()
