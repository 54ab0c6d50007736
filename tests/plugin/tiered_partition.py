"""A partition as RLMM and the bucket have it, and what always holds of it there."""

import re
from abc import ABC, abstractmethod
from uuid import UUID

from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import all_segments
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tests.harness.world import World

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
OBJECTS_OF_A_SEGMENT = 3
_OBJECT_KEY = re.compile(r"(?P<topic>\w{32})/(?P<partition>\d+)/\d{20}-(?P<segment>\w{32})\..+")


class TieredPartition(ABC):
    """The tier's view of a partition, whichever brokers have it."""

    name: TopicIdPartition

    @property
    @abstractmethod
    def world(self) -> World:
        """Return the services that keep its tier."""

    def __str__(self) -> str:
        return f"{self.name.topic}-{self.name.partition}"

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
