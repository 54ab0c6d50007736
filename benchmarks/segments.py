"""A segment of random bytes for RSM, which looks at no record."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.remote_storage_manager import (
    LogSegmentData,
    SegmentChunk,
    SegmentFile,
    SegmentFileHeader,
)
from services.api.segments import RemoteLogSegmentMetadata, segment_leader_epochs

CHUNK_BYTES = 1024 * 1024
_INDEXES = [f for f in SegmentFile if f not in (SegmentFile.LOG, SegmentFile.TRANSACTION)]


@dataclass(frozen=True)
class RandomSegment:
    """A file of `size_bytes` random bytes with four small indexes."""

    path: Path
    size_bytes: int

    def __post_init__(self) -> None:
        with self.path.open("wb") as file:
            for _ in range(0, self.size_bytes, CHUNK_BYTES):
                file.write(os.urandom(CHUNK_BYTES))

    def metadata(self) -> RemoteLogSegmentMetadata:
        """Of a new attempt."""
        tp = TopicIdPartition(uuid4(), "bench", 0)
        return RemoteLogSegmentMetadata(
            remote_log_segment_id=RemoteLogSegmentId(tp, uuid4()),
            start_offset=0,
            end_offset=1_000_000,
            max_timestamp_ms=-1,
            broker_id=1,
            event_timestamp_ms=0,
            segment_leader_epochs=segment_leader_epochs([(0, 0)]),
            segment_size_in_bytes=self.size_bytes,
        )

    def data(self) -> LogSegmentData:
        headers = [SegmentFileHeader(SegmentFile.LOG, self.size_bytes)]
        headers += [SegmentFileHeader(file, 1000) for file in _INDEXES]
        return LogSegmentData(headers, self._chunks())

    def _chunks(self) -> Iterator[SegmentChunk]:
        with self.path.open("rb", buffering=0) as file:
            while data := file.read(CHUNK_BYTES):
                yield SegmentChunk(SegmentFile.LOG, data)
        for file_kind in _INDEXES:
            yield SegmentChunk(file_kind, bytes(1000))
