"""A partition as RLMM and the bucket have it, and what always holds of it there."""

import os
import re
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Protocol
from uuid import UUID

from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import all_segments
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tests.harness.eventually import eventually, eventually_holds
from tests.harness.kafka_client import NOW, Cluster, Record, Topic, send_batch
from tests.harness.world import World
from tests.kafka.records import SeenRecord, consumed

DEADLINE_MS = 120_000
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
OBJECTS_OF_A_SEGMENT = 3
_OBJECT_KEY = re.compile(r"(?P<topic>\w{32})/(?P<partition>\d+)/\d{20}-(?P<segment>\w{32})\..+")


class Tiering(Protocol):
    """Brokers that tier, and the services behind them."""

    @property
    def cluster(self) -> Cluster: ...

    @property
    def world(self) -> World: ...


class TieredPartition(ABC):
    """The tier's view of a partition, and its clients', whichever brokers have it."""

    deployment: Tiering
    topic: Topic
    name: TopicIdPartition

    @property
    def world(self) -> World:
        return self.deployment.world

    def __str__(self) -> str:
        return f"{self.name.topic}-{self.name.partition}"

    # --- clients ----------------------------------------------------------------------------

    def produce(self, records: int = 10, value_bytes: int = 3000) -> list[bytes]:
        """Write records of now, a batch each, by default two to a segment.

        Returns the values that the brokers acknowledged.
        """
        values = [os.urandom(value_bytes) for _ in range(records)]
        with self.deployment.cluster.idempotent("none") as producer:
            for value in values:
                record = Record(b"key", value, NOW)
                send_batch(producer, self.topic, self.name.partition, [record])
        return values

    def read(self, isolation_level: str = "read_uncommitted") -> list[SeenRecord]:
        """Return what a consumer reads now, from the log start to the end."""
        return consumed(self.deployment.cluster, self.name, isolation_level)

    def values(self) -> list[bytes | None]:
        """Return the values that a consumer reads now."""
        return [record.value for record in self.read()]

    def configure(self, **config: str) -> None:
        """Set configs of the topic; underscores stand for dots."""
        self.deployment.cluster.configure(self.name.topic, **config)

    # --- waiting ----------------------------------------------------------------------------

    @abstractmethod
    def wait_until_tiered(self) -> list[RemoteLogSegmentMetadata]:
        """Wait until the tier has every offset below the active segment; return its segments."""

    @abstractmethod
    def wait_until_only_active_is_local(self) -> None:
        """Wait until every rolled segment has been removed from the disks."""

    def wait_until_moved(self) -> list[RemoteLogSegmentMetadata]:
        """Wait until the tier alone has the rolled segments; return them."""
        segments = self.wait_until_tiered()
        self.wait_until_only_active_is_local()
        return segments

    def wait_until_stable(self) -> None:
        """Wait until all transactions have ended in the log; their producers know before."""

        def is_stable() -> bool:
            found = self.deployment.cluster.offsets(self.name.topic, self.name.partition)
            return found.last_stable_offset == found.log_end_offset

        eventually(is_stable, DEADLINE_MS)

    # --- the tier ---------------------------------------------------------------------------

    def keep_nothing(self) -> None:
        """Let the objects of deleted segments go at once, as Kafka does; nothing if RLMM does not
        know the topic yet."""
        with self.world.metadata() as rlmm, suppress(RemoteResourceNotFoundError):
            entries = rlmm.topic_config(self.name.topic_id).entries
            rlmm.put_topic_config(self.name.topic_id, {**entries, "sediment.delete.grace.ms": "0"})

    def rows(self) -> list[RemoteLogSegmentMetadata]:
        """What RLMM lists of the partition, in any state; nothing of one that it does not know."""
        with self.world.metadata() as rlmm:
            try:
                return list(all_segments(rlmm, self.name))
            except RemoteResourceNotFoundError:
                return []

    def finished(self) -> list[RemoteLogSegmentMetadata]:
        """Its readable segments by offset."""
        rows = [row for row in self.rows() if row.state is FINISHED]
        return sorted(rows, key=lambda row: (row.start_offset, row.end_offset))

    def objects(self) -> dict[UUID, list[str]]:
        """Under each segment's id the keys of its objects in the bucket."""
        prefix = f"{self.name.topic_id.hex}/{self.name.partition}/"
        found: dict[UUID, list[str]] = {}
        for item in self.world.s3.client().list_objects(self.world.bucket, prefix, recursive=True):
            match = _OBJECT_KEY.fullmatch(str(item.object_name))
            assert match is not None, item.object_name
            found.setdefault(UUID(match["segment"]), []).append(match[0])
        return found

    def assert_finished_is_complete(self) -> None:
        """Every FINISHED segment has its objects, and bytes as many as its row says."""
        objects = self.objects()
        with self.world.storage() as rsm:
            for row in self.finished():
                keys = objects.get(row.remote_log_segment_id.id, [])
                assert len(keys) == OBJECTS_OF_A_SEGMENT, f"{self}: {row}, {keys}"
                size_bytes = sum(map(len, rsm.fetch_log_segment(row, 0)))
                assert size_bytes == row.segment_size_in_bytes, row

    def assert_every_object_has_a_row(self) -> None:
        named = {row.remote_log_segment_id.id for row in self.rows()}
        assert self.objects().keys() <= named, self

    def assert_nothing_is_left(self) -> None:
        """Neither a row nor an object: so it must be once the topic is deleted."""
        assert self.rows() == []
        assert self.objects() == {}

    def wait_until_nothing_is_left(self) -> None:
        eventually_holds(self.assert_nothing_is_left, DEADLINE_MS)
