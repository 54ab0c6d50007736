"""Read fuzzed indexes as a fetch does: from RSM, from the cache's files, from the local log."""

from collections.abc import Iterator, Sequence
from functools import cache
from struct import pack
from typing import Any
from uuid import UUID

from services.api.errors import CorruptSegmentError
from services.api.ids import RemoteLogSegmentId
from services.api.remote_storage_manager import IndexType
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    SegmentLeaderEpoch,
)
from services.rlm.fetch.index_cache import RemoteIndexCache, name_of
from services.rlm.fetch.index_files import IndexFileLimits, IndexFiles
from services.rlm.fetch.segment_reader import local_runs
from services.rlm.kafka_log.partition_dir import list_segments
from tests.harness.parsers.of_logs import bundled_files
from tests.harness.parsers.target import Target, written
from tests.unit.rlm.kafka_bytes import NAME, batch, producer_snapshot

_BATCHES = [batch(first, 3, payload=bytes([first]) * 40) for first in range(0, 30, 3)]
_END_OFFSET = 30
_SEGMENT = RemoteLogSegmentMetadata(
    remote_log_segment_id=RemoteLogSegmentId(NAME, UUID(int=2 << 100)),
    start_offset=0,
    end_offset=_END_OFFSET - 1,
    max_timestamp_ms=1_000,
    broker_id=1,
    event_timestamp_ms=2_000,
    segment_size_in_bytes=100_000,
    segment_leader_epochs=(SegmentLeaderEpoch(0, 0),),
    state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
)
_KINDS = tuple(IndexType)
_MEMORY_BYTES = 1024 * 1024


class _Store:
    """Answer each request for an index with the same bytes, in two chunks."""

    def __init__(self, index: bytes) -> None:
        self._index = index

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, kind: IndexType) -> Iterator[bytes]:
        half = len(self._index) // 2
        return iter((self._index[:half], self._index[half:]))


def _read_fetched_index(data: bytes) -> None:
    """Take the kind of the index from the first byte."""
    if not data:
        return
    kind, store = _KINDS[data[0] % len(_KINDS)], _Store(data[1:])
    rsm: Any = store
    indexes = RemoteIndexCache(rsm, _MEMORY_BYTES)
    assert indexes.index(_SEGMENT, kind) == data[1:]
    if kind is IndexType.OFFSET:
        index = indexes.offset_index(_SEGMENT)
        for offset in (0, _END_OFFSET):
            found = index.lookup(offset)
            assert found is None or 0 <= found[0] <= offset
            assert found is None or 0 <= found[1] < _SEGMENT.segment_size_in_bytes


def _fetched_indexes() -> Sequence[bytes]:
    contents = {
        IndexType.OFFSET: pack(">iiii", 2, 100, 5, 200),
        IndexType.TIMESTAMP: pack(">qiqi", 900, 2, 1_000, 5),
        IndexType.TRANSACTION: bundled_files("*/*.txnindex")()[-1],
        IndexType.PRODUCER_SNAPSHOT: producer_snapshot({1: 5}),
        IndexType.LEADER_EPOCH: b"0\n1\n0 0\n",
    }
    return [bytes([_KINDS.index(kind)]) + content for kind, content in contents.items()]


_FILE = name_of(_SEGMENT.remote_log_segment_id, IndexType.OFFSET)


def _read_cache_file(data: bytes) -> None:
    """Read the bytes as a file of the cache: its index, or none if the file is damaged."""
    directory = written(data, _FILE).parent
    found = IndexFiles(IndexFileLimits(directory)).read(_FILE)
    assert found is None or data.endswith(found)
    assert (directory / _FILE).exists() == (found is not None)


@cache
def _cache_files() -> Sequence[bytes]:
    path = written(b"", _FILE)
    files = IndexFiles(IndexFileLimits(path.parent))
    files.maintain()
    files.write(_FILE, pack(">iiii", 2, 100, 5, 200))
    return [path.read_bytes()]


def _read_with_local_index(data: bytes) -> None:
    """Read a local log through the bytes as its index: what is read must not depend on it."""
    path = written(b"".join(_BATCHES), f"{0:020}.log")
    for other in set(path.parent.glob("*.log")) - {path}:
        other.unlink()
    written(data, f"{0:020}.index")
    written(batch(_END_OFFSET), f"{_END_OFFSET:020}.log")
    segments = list_segments(path.parent)
    for offset in (0, 4, _END_OFFSET - 1):
        read = local_runs(segments[0], offset, _END_OFFSET, lambda _: True)
        found = [each.base_offset for run in read for each in run.batches()]
        assert found == list(range(offset // 3 * 3, _END_OFFSET, 3))
    for segment in segments:
        segment.log_path.unlink()


def _local_indexes() -> Sequence[bytes]:
    size = len(_BATCHES[0])
    entries = [(2, 0), (5, size), (14, 4 * size), (29, 9 * size)]
    return [
        b"".join(pack(">ii", *entry) for entry in entries),
        pack(">ii", 2, 7) + bytes(80),
        *bundled_files("*/*.index")(),
    ]


TARGETS = (
    Target("fetched_index", _read_fetched_index, (CorruptSegmentError,), _fetched_indexes),
    Target("index_cache_file", _read_cache_file, (), _cache_files),
    Target("local_index", _read_with_local_index, (), _local_indexes),
)
