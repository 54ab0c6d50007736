"""Make segments of random bytes for RSM, which reads no records."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from uuid import uuid4

from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.remote_storage_manager import (
    LogSegmentData,
    RemoteStorageManager,
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
        """Return the metadata of a new attempt."""
        return segment_metadata(self.size_bytes)

    def copied(self, rsm: RemoteStorageManager) -> RemoteLogSegmentMetadata:
        """Copy the segment under a new id; return the metadata as the client has it afterwards."""
        metadata = self.metadata()
        return replace(metadata, custom_metadata=rsm.copy_log_segment_data(metadata, self.data()))

    def data(self) -> LogSegmentData:
        return segment_data(self.size_bytes, self._log())

    def _log(self) -> Iterator[bytes]:
        with self.path.open("rb", buffering=0) as file:
            while data := file.read(CHUNK_BYTES):
                yield data


def generated_log(size_bytes: int) -> Iterator[bytes]:
    """Yield random bytes that no store can compress, and that need no disk."""
    # Windows into random bytes, all of them different.
    random_bytes = memoryview(os.urandom(2 * CHUNK_BYTES))
    for number in range(-(-size_bytes // CHUNK_BYTES)):
        start = number * 509 % CHUNK_BYTES
        length = min(CHUNK_BYTES, size_bytes - number * CHUNK_BYTES)
        yield bytes(random_bytes[start : start + length])


def segment_metadata(size_bytes: int) -> RemoteLogSegmentMetadata:
    """Return the metadata of a new segment in a topic of its own."""
    tp = TopicIdPartition(uuid4(), "bench", 0)
    return RemoteLogSegmentMetadata(
        remote_log_segment_id=RemoteLogSegmentId(tp, uuid4()),
        start_offset=0,
        end_offset=1_000_000,
        max_timestamp_ms=-1,
        broker_id=1,
        event_timestamp_ms=0,
        segment_leader_epochs=segment_leader_epochs([(0, 0)]),
        segment_size_in_bytes=size_bytes,
    )


def segment_data(log_size_bytes: int, log: Iterable[bytes]) -> LogSegmentData:
    """Return `log`, which has so many bytes, with four small indexes."""
    headers = [SegmentFileHeader(SegmentFile.LOG, log_size_bytes)]
    headers += [SegmentFileHeader(file, 1000) for file in _INDEXES]
    chunks = (SegmentChunk(SegmentFile.LOG, data) for data in log)
    indexes = (SegmentChunk(file, bytes(1000)) for file in _INDEXES)
    return LogSegmentData(headers, chain(chunks, indexes))
