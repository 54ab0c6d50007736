"""Cache indexes of remote segments: in memory, and in files that outlive the process.

What for. Each read of the tier needs the offset index of its segment, and some need its time,
transaction or epoch index or its producer snapshot. A request to RSM for each would double the time
to the first byte, so the most recently used indexes stay here, as in Kafka's RemoteIndexCache.

How to use. `index` returns an index that was checked, `offset_index` the offset index in a form to
search. `remove` drops what deleted segments have left; the one wrapper of RSM that deletes calls
it. A thread of RLM calls `maintain`, which also makes the directory and counts the files
(index_files.py).

Invariants.
* An index is checked against its segment once, when it comes from RSM, and against the checksum of
  its file when it comes from the disk. What is in memory was checked.
* Memory is bounded in bytes, overhead included; files by IndexFileLimits. The directory is the only
  state of the files, and may be shared, emptied or lost at any time.
* An absent transaction index is not cached: only the metadata proves that there is none.

Cancellation. Readers that miss the same index share one fetch. If the reader that fetches leaves,
another one fetches again; a reader waits `wait_s` for others at most. Crash. A file is written
under another name and renamed; unfinished ones are removed after a minute, torn ones fail their
checksum and are fetched again. A dead store is an error of the read, and never cached. A dead disk
is a miss: a breaker leaves the disk alone for a while, and reads go on from memory and RSM.
"""

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cachetools import LRUCache

from services.api.errors import (
    CorruptSegmentError,
    InvalidRequestError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from services.api.ids import RemoteLogSegmentId
from services.api.lineage import parse_checkpoint
from services.api.remote_log_manager import ProblemKind
from services.api.remote_storage_manager import IndexType, RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata
from services.common.single_flight import SingleFlight
from services.records.batches import BatchError
from services.records.index_files import (
    TIME_ENTRY,
    OffsetIndex,
    open_transactions,
    parse_aborted_txns,
)
from services.rlm.fetch.index_files import IndexFiles
from services.rlm.kafka_log.partition_dir import MAX_SIDE_FILE_BYTES
from services.rlm.metrics import (
    HITS,
    MISSES,
)

_ENTRY_OVERHEAD_BYTES = 512
_IN_MEMORY, _IN_FILE = HITS.labels("memory"), HITS.labels("file")


@dataclass(frozen=True, slots=True)
class _Loaded:
    index: bytes
    is_fetched: bool


class RemoteIndexCache:
    """Keep the most recently used indexes in memory, and more of them in files.

    Thread-safe; readers that miss the same index at the same time cause one fetch.

    Args:
        files: None for memory only.
        wait_s: how long a reader waits for the fetch of another.
    """

    def __init__(
        self,
        rsm: RemoteStorageManager,
        memory_bytes: int,
        files: IndexFiles | None = None,
        wait_s: float = 0.5,
    ) -> None:
        self._rsm = rsm
        self._files = files
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._memory: LRUCache[str, bytes] = LRUCache(
            memory_bytes, getsizeof=lambda index: len(index) + _ENTRY_OVERHEAD_BYTES
        )
        self._flights: SingleFlight[str, _Loaded] = SingleFlight()

    def offset_index(self, segment: RemoteLogSegmentMetadata) -> OffsetIndex:
        """Get the segment's offset index; raises as `index` does."""
        return OffsetIndex(self.index(segment, IndexType.OFFSET), segment.start_offset)

    def index(self, segment: RemoteLogSegmentMetadata, kind: IndexType) -> bytes:
        """Get a checked index of the segment; empty if it has no transaction index.

        Raises:
            RemoteResourceNotFoundError: if the index is not in the store.
            CorruptSegmentError: if the object is not an index of this segment.
            RetriableRemoteStorageError: if the store is unreachable, or the fetch of another reader
                takes too long.
        """
        if kind is IndexType.TRANSACTION and segment.txn_idx_empty:
            return b""
        name = name_of(segment.remote_log_segment_id, kind)
        index = self._in_memory(name)
        if index is not None:
            return index
        try:
            loaded, is_mine = self._flights.run(
                name, lambda: self._load(name, segment, kind), self._wait_s
            )
        except RemoteResourceNotFoundError:
            if kind is not IndexType.TRANSACTION:
                raise
            # As in Kafka. Not cached, because only the metadata proves that there is none.
            return b""
        # After the waiting readers have the index, because the disk may be slow.
        if loaded.is_fetched and is_mine and self._files is not None:
            self._files.write(name, loaded.index)
        return loaded.index

    def remove(self, segments: Iterable[RemoteLogSegmentId]) -> None:
        """Remove the indexes of deleted segments."""
        names = [name_of(segment, kind) for segment in segments for kind in IndexType]
        with self._lock:
            for name in names:
                self._memory.pop(name, None)
        if self._files is not None:
            self._files.remove(names)

    def maintain(self) -> None:
        """Run one pass of IndexFiles.maintain."""
        if self._files is not None:
            self._files.maintain()

    def _in_memory(self, name: str) -> bytes | None:
        with self._lock:
            index: bytes | None = self._memory.get(name)
        if index is None:
            return None
        _IN_MEMORY.inc()
        if self._files is not None:
            # Otherwise the file of the most read index would be removed first.
            self._files.mark_used(name)
        return index

    def _load(self, name: str, segment: RemoteLogSegmentMetadata, kind: IndexType) -> _Loaded:
        # Another reader may have finished its fetch since the first check.
        index = self._in_memory(name)
        if index is not None:
            return _Loaded(index, is_fetched=False)
        if self._files is not None:
            index = self._files.read(name)
        is_fetched = index is None
        if index is None:
            MISSES.inc()
            index = _joined(self._rsm.fetch_index(segment, kind), segment, kind)
            check_index(segment, kind, index)
        else:
            _IN_FILE.inc()
        with self._lock:
            if len(index) + _ENTRY_OVERHEAD_BYTES <= self._memory.maxsize:
                self._memory[name] = index
        return _Loaded(index, is_fetched)


def _joined(chunks: Iterator[bytes], segment: RemoteLogSegmentMetadata, kind: IndexType) -> bytes:
    """Join an index that is streamed, up to a limit.

    Raises:
        CorruptSegmentError: it is larger than any index.
    """
    pieces: list[bytes] = []
    size_bytes = 0
    for chunk in chunks:
        size_bytes += len(chunk)
        if size_bytes > MAX_SIDE_FILE_BYTES:
            name = segment.remote_log_segment_id
            raise CorruptSegmentError(
                f"segment {name}: its {kind.value} index is larger than {MAX_SIDE_FILE_BYTES} "
                f"bytes, so it is damaged; run `sediment scrub --topic "
                f"{name.topic_id_partition.topic}`"
            )
        pieces.append(chunk)
    return b"".join(pieces)


def name_of(segment: RemoteLogSegmentId, kind: IndexType) -> str:
    """Name the file of an index."""
    return f"{segment.id.hex}.{kind.value.lower()}"


def check_index(segment: RemoteLogSegmentMetadata, kind: IndexType, data: bytes) -> None:
    """Check that the bytes are an index of this kind and segment.

    Raises:
        CorruptSegmentError: if they are not.
    """
    try:
        match kind:
            case IndexType.OFFSET:
                OffsetIndex(data, segment.start_offset, segment.segment_size_in_bytes)
            case IndexType.TIMESTAMP:
                _check_times(data, segment.end_offset - segment.start_offset)
            case IndexType.TRANSACTION:
                parse_aborted_txns(data)
            case IndexType.PRODUCER_SNAPSHOT:
                open_transactions(data)
            case IndexType.LEADER_EPOCH:
                parse_checkpoint(data.decode("ascii"))
    except (ValueError, InvalidRequestError) as e:
        raise damaged(segment, f"{kind.value} index: {e}") from e


def damaged(segment: RemoteLogSegmentMetadata, problem: str) -> CorruptSegmentError:
    """Make the error of a segment's damaged bytes: what, in which segment, and what to do next."""
    name = segment.remote_log_segment_id
    topic = name.topic_id_partition.topic
    return CorruptSegmentError(
        f"{name}, offsets {segment.start_offset} to {segment.end_offset}: {problem}; `sediment "
        f"scrub --topic {topic}` verifies the topic's segments and names damaged objects"
    )


def unread(segment: RemoteLogSegmentMetadata, error: BatchError) -> RemoteStorageError:
    """Make the error of a batch of a segment: damaged, or over a limit."""
    if error.kind is not ProblemKind.LIMIT_EXCEEDED:
        return damaged(segment, f"{error} of the copied log")
    return RemoteStorageError(f"{segment.remote_log_segment_id}: {error}")


def _check_times(data: bytes, last_relative_offset: int) -> None:
    """Check a time index less strictly than a copy, because a broker may have copied it."""
    if len(data) % TIME_ENTRY.size:
        raise ValueError(f"{len(data)} bytes are not whole entries of {TIME_ENTRY.size}")
    before = (-1, -1)
    for entry in TIME_ENTRY.iter_unpack(data):
        if entry[0] < before[0] or entry[1] < before[1]:
            raise ValueError(f"entry {entry} follows {before}; entries must ascend")
        before = entry[0], entry[1]
    if before[1] > last_relative_offset:
        raise ValueError(f"relative offset {before[1]} is beyond the segment")
