"""Where the segments of a partition are: on the broker's disk, in RLMM's rows, in the bucket."""

import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minio import Minio
from prometheus_client.parser import text_string_to_metric_families

from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.segment_queries import all_segments
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.rlm.kafka_log.partition_dir import LocalSegment, list_segments

OBJECTS_PER_SEGMENT = 3
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_FETCH = "/tieredstorage.v1.RemoteStorageManager/FetchLogSegment"
_METRICS_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment, wherever it is.

    Attributes:
        last_offset: inclusive; None: the active segment.
        in_tier: it is COPY_SEGMENT_FINISHED.
    """

    first_offset: int
    last_offset: int | None
    size_bytes: int
    on_disk: bool
    in_tier: bool


@dataclass(frozen=True)
class View:
    """One look at a partition.

    Attributes:
        rows: RLMM's segments in any state but DELETE_SEGMENT_FINISHED, by start offset.
        objects: in the bucket, name to size in bytes.
    """

    disk: Sequence[LocalSegment]
    rows: Sequence[RemoteLogSegmentMetadata]
    objects: dict[str, int]

    @property
    def finished(self) -> list[RemoteLogSegmentMetadata]:
        return [row for row in self.rows if row.state is _FINISHED]

    @property
    def tier_bytes(self) -> int:
        """Of the finished segments, without their indexes and manifests."""
        return sum(row.segment_size_in_bytes for row in self.finished)

    @property
    def local_log_start_offset(self) -> int:
        return self.disk[0].base_offset

    @property
    def segments(self) -> list[Segment]:
        """By offset, each once."""
        local = {segment.base_offset: segment for segment in self.disk}
        remote = {row.start_offset: row for row in self.finished}
        return [
            self._segment(first, local.get(first), remote.get(first))
            for first in sorted({*local, *remote})
        ]

    @property
    def left_the_disk(self) -> list[Segment]:
        return [segment for segment in self.segments if not segment.on_disk]

    @property
    def is_each_finished_segment_stored(self) -> bool:
        """Three objects for each finished segment, and none that no row names."""
        stored = all(len(self.objects_of(row)) == OBJECTS_PER_SEGMENT for row in self.finished)
        named = sum(len(self.objects_of(row)) for row in self.rows)
        return stored and len(self.objects) == named

    def objects_of(self, row: RemoteLogSegmentMetadata) -> list[str]:
        """The names of a segment's objects: each bears the segment's id."""
        segment_id = row.remote_log_segment_id.id.hex
        return [name for name in self.objects if segment_id in name]

    def lost_offset(self, log_start_offset: int = 0) -> int | None:
        """The first offset below the local log that no finished segment has; None: there is none.

        An offset that left the disk before its segment was finished shows here.
        """
        expected = log_start_offset
        for row in self.finished:
            if row.start_offset > expected:
                break
            expected = max(expected, row.end_offset + 1)
        return expected if expected < self.local_log_start_offset else None

    @staticmethod
    def _segment(
        first: int, local: LocalSegment | None, remote: RemoteLogSegmentMetadata | None
    ) -> Segment:
        if remote is not None:
            size_bytes, last = remote.segment_size_in_bytes, remote.end_offset
            return Segment(first, last, size_bytes, local is not None, True)
        assert local is not None  # one of the two is where the offset came from
        last_offset = local.end_offset if local.is_rolled else None
        return Segment(first, last_offset, local.size_bytes, True, False)


@dataclass(frozen=True)
class TieredPartition:
    """A partition of a running broker, and those who keep its tier.

    Attributes:
        folder: on the broker's disk.
        rsm_metrics: HOST:PORT.
    """

    name: TopicIdPartition
    folder: Path
    rlmm: RemoteLogMetadataManager
    store: Minio
    bucket: str
    rsm_metrics: str

    def look(self) -> View:
        """The disk first: what is gone from it must be in what RLMM says after that."""
        disk = list_segments(self.folder)
        return View(disk, self.rows(), self.objects())

    def rows(self) -> list[RemoteLogSegmentMetadata]:
        try:
            return list(all_segments(self.rlmm, self.name))
        except RemoteResourceNotFoundError:
            return []  # the broker has not told RLMM of the partition yet

    def objects(self) -> dict[str, int]:
        listed = self.store.list_objects(
            self.bucket, prefix=f"{self.name.topic_id.hex}/", recursive=True
        )
        return {str(item.object_name): item.size or 0 for item in listed}

    def fetches(self) -> int:
        """How many FetchLogSegment calls RSM has served; the broker ends most of them early."""
        address = f"http://{self.rsm_metrics}/metrics"
        with urllib.request.urlopen(address, timeout=_METRICS_TIMEOUT_S) as answer:
            text = answer.read().decode()
        return sum(
            int(sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "sediment_rpc_seconds_count" and sample.labels["method"] == _FETCH
        )
