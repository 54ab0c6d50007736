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
* An absent transaction index counts as empty, but is not cached.

Cancellation. Readers that miss the same index share one fetch. If the reader that fetches leaves,
another one fetches again; a reader waits `wait_s` for others at most. Crash. A file is written
under another name and renamed; unfinished ones are removed after a minute, torn ones fail their
checksum and are fetched again. A dead store is an error of the read, and never cached. A dead disk
is a miss: a breaker leaves the disk alone for a while, and reads go on from memory and RSM.
"""

from collections.abc import Iterable, Iterator

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
    OffsetIndex,
    check_time_index,
    open_transactions,
    parse_aborted_txns,
)
from services.rlm.fetch.index_files import IndexFiles
from services.rlm.kafka_log.partition_dir import MAX_SIDE_FILE_BYTES
from services.rlm.metrics import HITS, MISSES

_ENTRY_OVERHEAD_BYTES = 512
_IN_MEMORY, _IN_FILE = HITS.labels("memory"), HITS.labels("file")


class RemoteIndexCache:
    """Keep the most recently used indexes in memory, and more of them in files. Thread-safe.

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
        self._memory: SingleFlight[str, bytes] = SingleFlight(
            LRUCache(memory_bytes, getsizeof=lambda index: len(index) + _ENTRY_OVERHEAD_BYTES)
        )

    def offset_index(self, segment: RemoteLogSegmentMetadata) -> OffsetIndex:
        """Get the segment's offset index; raises as `index` does."""
        return OffsetIndex(self.index(segment, IndexType.OFFSET), segment.start_offset)

    def index(self, segment: RemoteLogSegmentMetadata, kind: IndexType) -> bytes:
        """Get a checked index of the segment; empty if it has no transaction index.

        Raises:
            RemoteResourceNotFoundError: if the store has no such object.
            CorruptSegmentError: if the object is not an index of this segment.
            RetriableRemoteStorageError: if the store is unreachable, or the fetch of another reader
                takes too long.
        """
        if kind is IndexType.TRANSACTION and segment.txn_idx_empty:
            return b""
        name = name_of(segment.remote_log_segment_id, kind)
        cached = self.in_memory(segment, kind)
        if cached is not None:
            _IN_MEMORY.inc()
            if self._files is not None:
                # Otherwise the file of the most read index would be removed first.
                self._files.mark_used(name)
            return cached
        is_fetched = False

        def load() -> bytes:
            nonlocal is_fetched
            stored = None if self._files is None else self._files.read(name)
            if stored is not None:
                _IN_FILE.inc()
                return stored
            MISSES.inc()
            fetched = _joined(self._rsm.fetch_index(segment, kind), segment, kind)
            check_index(segment, kind, fetched)
            is_fetched = True
            return fetched

        try:
            index, _ = self._memory.run(name, load, self._wait_s)
        except RemoteResourceNotFoundError:
            if kind is not IndexType.TRANSACTION:
                raise
            return b""  # As in Kafka.
        # After the waiting readers have the index, because the disk may be slow.
        if is_fetched and self._files is not None:
            self._files.write(name, index)
        return index

    def in_memory(self, segment: RemoteLogSegmentMetadata, kind: IndexType) -> bytes | None:
        """Return an index that is in memory; None if it is not."""
        return self._memory.cached(name_of(segment.remote_log_segment_id, kind))

    def remove(self, segments: Iterable[RemoteLogSegmentId]) -> None:
        """Remove the indexes of deleted segments."""
        names = [name_of(segment, kind) for segment in segments for kind in IndexType]
        self._memory.discard(names)
        if self._files is not None:
            self._files.remove(names)

    def maintain(self) -> None:
        """Run one pass of IndexFiles.maintain."""
        if self._files is not None:
            self._files.maintain()


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
                check_time_index(data, segment.start_offset, segment.end_offset)
            case IndexType.TRANSACTION:
                parse_aborted_txns(data)
            case IndexType.PRODUCER_SNAPSHOT:
                open_transactions(data)
            case IndexType.LEADER_EPOCH:
                parse_checkpoint(data.decode("ascii"))
    except (ValueError, InvalidRequestError) as e:
        raise damaged_segment_error(segment, f"{kind.value} index: {e}") from e


def damaged_segment_error(segment: RemoteLogSegmentMetadata, problem: str) -> CorruptSegmentError:
    """Make the error of a segment's damaged bytes: what, in which segment, and what to do next."""
    name = segment.remote_log_segment_id
    topic = name.topic_id_partition.topic
    return CorruptSegmentError(
        f"{name}, offsets {segment.start_offset} to {segment.end_offset}: {problem}; `sediment "
        f"scrub --topic {topic}` verifies the topic's segments and names damaged objects"
    )


def unreadable_batch_error(
    segment: RemoteLogSegmentMetadata, error: BatchError
) -> RemoteStorageError:
    """Make the error of a batch of a segment: damaged, or over a limit."""
    if error.kind is not ProblemKind.LIMIT_EXCEEDED:
        return damaged_segment_error(segment, f"{error} of the copied log")
    return RemoteStorageError(f"{segment.remote_log_segment_id}: {error}")
