"""Open one segment at an offset, from the local log or from the tier."""

import os
import time
from bisect import bisect_right
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from services.api.errors import (
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from services.api.ids import TopicIdPartition
from services.api.lineage import EpochRanges, Lineage
from services.api.remote_log_manager import FetchRole, RecordSource
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.remote_storage_manager import IndexType
from services.api.segments import RemoteLogSegmentMetadata
from services.api.validation import INT64_MAX
from services.common.bounded_file import open_regular
from services.common.fair_queue import MOST_CHARGED_S, QuotaLimit
from services.records.batches import NO_CLAIMS, BatchError, Claims, FileWindow
from services.records.index_files import (
    OFFSET_ENTRY,
    AbortedTxn,
    first_offset_since,
    open_transactions,
    parse_aborted_txns,
)
from services.records.runs import BatchRun, IndexEntry, SegmentBytes, TakesBatch, runs_from
from services.rlm.fetch.chunk_cache import Chunk, ChunkCache
from services.rlm.fetch.errors import LostSegmentError, ReadThrottledError
from services.rlm.fetch.index_cache import RemoteIndexCache
from services.rlm.fetch.read_ahead import (
    NextSegment,
    SegmentWindow,
    SequentialRead,
    SequentialReads,
)
from services.rlm.fetch.segment_lookups import SegmentLookUps
from services.rlm.fetch.tier_calls import TierCalls, TierWait
from services.rlm.kafka_log.partition_dir import LocalSegment, reading_segment
from services.rlm.metrics import (
    FETCH_THROTTLE_SECONDS,
    REMOTE_FETCH_BYTES,
    REMOTE_FETCH_ERRORS,
    REMOTE_FETCH_REQUESTS,
    TopicCounts,
)


def entry_in_file(path: Path, base_offset: int, offset: int) -> IndexEntry | None:
    """Look up `offset` in a local offset index without reading all of it; None to start at 0.

    An active segment's index is preallocated: entries of zeros at its end are unused.
    """
    try:
        fd = open_regular(path)
    except FileNotFoundError:
        return None

    def entry(number: int) -> IndexEntry:
        data = os.pread(fd, OFFSET_ENTRY.size, number * OFFSET_ENTRY.size)
        relative, position = OFFSET_ENTRY.unpack(data.ljust(OFFSET_ENTRY.size, b"\0"))
        return base_offset + relative, position

    def key(number: int) -> int:
        last_offset, position = entry(number)
        return last_offset if position else offset + 1

    try:
        count = os.fstat(fd).st_size // OFFSET_ENTRY.size
        at = bisect_right(range(count), offset, key=key)
        return entry(at - 1) if at else None
    finally:
        os.close(fd)


_LOCAL_READ_AHEAD_BYTES = 256 * 1024


def local_runs(
    segment: LocalSegment, offset: int, end_offset: int, takes: TakesBatch
) -> Generator[BatchRun, None, None]:
    """Read the complete batches of a local segment from `offset` to `end_offset` (exclusive).

    Raises:
        BatchError: if a batch is damaged.
        LogFileError: UNREADABLE.
        SegmentVanishedError: if the broker deleted the segment.
    """
    path = segment.log_path
    with reading_segment(path), FileWindow(path, _LOCAL_READ_AHEAD_BYTES) as window:
        claims = Claims(segment.end_offset) if segment.is_rolled else NO_CLAIMS
        source = SegmentBytes(window, segment.base_offset, segment.size_bytes, end_offset, claims)
        entry = entry_in_file(segment.file(".index"), segment.base_offset, offset)
        yield from runs_from(source, offset, entry, takes)


@dataclass(frozen=True, slots=True)
class MetadataAges:
    """How old what RLM knows of a tier may be for a reader, seconds.

    Attributes:
        recent_s: to read in a segment that RLM knows.
        stale_s: while RLMM is unreachable.
    """

    recent_s: float = 0.0
    stale_s: float = 0.0


class FoundTransactions(NamedTuple):
    """The aborted transactions in the transaction index of one segment.

    Attributes:
        next_offset: at which to continue; None if no segment that begins before the end of the
            search has an index.
        is_changed: RLMM answered for another revision of the partition than that which was read.
    """

    entries: tuple[AbortedTxn, ...]
    next_offset: int | None
    is_changed: bool


class RemoteSegmentReader:
    """Read segments of the tier, a limited number at once. Thread-safe."""

    def __init__(
        self,
        rlmm: RemoteLogMetadataManager,
        cache: RemoteIndexCache,
        chunks: ChunkCache,
        clock: Callable[[], float] = time.monotonic,
        *,
        calls: TierCalls | None = None,
        quota: QuotaLimit | None = None,
        ages: MetadataAges | None = None,
    ) -> None:
        self._rlmm = rlmm
        self.lookups = SegmentLookUps(rlmm)
        self._cache = cache
        self._chunks = chunks
        self._reads = SequentialReads()
        self.calls = calls or TierCalls()
        self._quota = (quota or QuotaLimit()).bucket("remote reads", clock)
        self._ages = ages or MetadataAges()

    def ages_for(self, role: FetchRole) -> MetadataAges:
        """Return how old metadata may be for such a reader."""
        if role is not FetchRole.CONSUMER:
            return MetadataAges()  # A replica must not go by what may have changed.
        return self._ages

    def runs(
        self,
        segment: RemoteLogSegmentMetadata,
        offset: int,
        takes: TakesBatch,
        wanted_bytes: int,
        end_offset: int = INT64_MAX,
        next_segment: NextSegment = lambda: None,
        wait: TierWait | None = None,
    ) -> Generator[BatchRun, None, None]:
        """Read the batches of a remote segment from `offset` to `end_offset` (exclusive).

        Close it to end the read early. The caller holds a slot.

        Args:
            takes: as for runs_from.
            wanted_bytes: about how much will be read; little more is requested from the store,
                unless an earlier read ended at `offset`.
            next_segment: finds the segment that such a reader reads next.
            wait: for the next bytes; what arrives later is there for the next read.

        Raises:
            BatchError: if a batch is damaged.
            RemoteResourceNotFoundError: if the log or its index is not in the store.
            CorruptSegmentError: if the index is not valid.
            ReadTimeoutError: if the store does not send the next bytes in time.
            RetriableRemoteStorageError: if the store is unreachable.
            RemoteStorageError: if the metadata has no size of the segment.
        """
        size = _size_of(segment)
        segment_id = segment.remote_log_segment_id
        partition = segment_id.topic_id_partition
        read, read_bytes, next_offset = self._reads.begin(partition, offset), 0, offset
        entry, start = self._place_of(segment, offset, read)
        limit = wait or TierWait(self.calls.wait_s)
        readers = self._reads.active()
        window = SegmentWindow(
            self._chunks, segment, wanted_bytes, read, limit, next_segment, readers
        )
        try:
            with closing(window):
                claims = Claims.of(segment)
                source = SegmentBytes(window, segment.start_offset, size, end_offset, claims)
                for run in runs_from(source, offset, entry, takes, start):
                    yield run
                    read_bytes += run.size_bytes
                    read.ended_in, read.ended_at = segment_id, run.next_position
                    is_last = run.next_position >= size
                    next_offset = segment.end_offset if is_last else run.last_offset
                    next_offset += 1
        except BatchError:
            # The next read may get other bytes from the store.
            self._chunks.remove([segment.remote_log_segment_id])
            raise
        finally:
            if read_bytes:
                read.run_bytes += read_bytes
                self._reads.end(partition, next_offset, read)

    def load_index(self, segment: RemoteLogSegmentMetadata, offset: int) -> None:
        """Let the cache have what `runs` needs of a segment's index; raises as `runs`.

        The caller holds a slot.
        """
        name = segment.remote_log_segment_id.topic_id_partition
        self._place_of(segment, offset, self._reads.upcoming(name, offset))

    def request_first(
        self, segment: RemoteLogSegmentMetadata, offset: int, wanted_bytes: int
    ) -> Chunk:
        """Request the first bytes of a read that follows, without waiting for them.

        The caller holds a slot, and releases the chunk with `release` after the read.

        Raises:
            ThrottledError: too many requests to the store are active.
            RemoteStorageError: as `runs`.
        """
        _size_of(segment)
        name = segment.remote_log_segment_id.topic_id_partition
        read, wait = self._reads.upcoming(name, offset), TierWait(self.calls.wait_s)
        entry, start = self._place_of(segment, offset, read)
        window = SegmentWindow(self._chunks, segment, wanted_bytes, read, wait, lambda: None)
        return window.request_first(start if entry is None else max(entry[1], 0))

    def release(self, chunk: Chunk) -> None:
        """Release the chunk of `request_first`."""
        self._chunks.release(chunk)

    def _place_of(
        self, segment: RemoteLogSegmentMetadata, offset: int, read: SequentialRead
    ) -> tuple[IndexEntry | None, int]:
        """Return the index's entry for an offset, and where to begin if there is none."""
        if read.ended_in == segment.remote_log_segment_id:
            return None, read.ended_at  # A reader that continues needs no index.
        # Its first batch is at its beginning.
        has_entry = offset > segment.start_offset
        return self._cache.offset_index(segment).lookup(offset) if has_entry else None, 0

    def require_quota(self) -> None:
        """Raise ReadThrottledError if the fetch quota is used up."""
        owed_s = self._quota.owed_s()
        if owed_s > 0:
            FETCH_THROTTLE_SECONDS.observe(owed_s)
            raise ReadThrottledError(owed_s)

    def reserve_quota(self, wanted_bytes: int) -> int:
        """Take the bytes that a read may return from the fetch quota, before it begins.

        Readers who come together see what each of them took. `settle_quota` follows.

        Returns:
            How many bytes the read may return.

        Raises:
            ReadThrottledError: if the quota is used up.
        """
        reserved, owed_s = self._quota.reserve(wanted_bytes)
        if owed_s > 0:
            FETCH_THROTTLE_SECONDS.observe(owed_s)
            raise ReadThrottledError(owed_s)
        return int(reserved)

    def settle_quota(self, reserved_bytes: int, fetched_bytes: int) -> None:
        """Give back what a read did not return, or take what a large batch had more."""
        more_bytes = fetched_bytes - reserved_bytes
        self._quota.force_take(min(more_bytes, self._quota.rate_per_s * MOST_CHARGED_S))

    def first_offset_since(self, segment: RemoteLogSegmentMetadata, time_ms: int) -> int:
        """Return an offset of the segment before which every record is older than `time_ms`.

        The caller holds a slot. Raises as RemoteIndexCache.index.
        """
        times = self._cache.index(segment, IndexType.TIMESTAMP)
        return first_offset_since(times, segment.start_offset, segment.end_offset, time_ms)

    def first_open_offset(self, segment: RemoteLogSegmentMetadata) -> int:
        """Return the first offset of the transactions that are open at a segment's end.

        It is the offset after the segment if none is open. The caller holds a slot.

        Raises:
            RemoteResourceNotFoundError: if the producer snapshot is not in the store.
            CorruptSegmentError, RetriableRemoteStorageError: as RemoteIndexCache.index.
        """
        snapshot = self._cache.index(segment, IndexType.PRODUCER_SNAPSHOT)
        return min(open_transactions(snapshot).values(), default=segment.end_offset + 1)

    def replica_indexes(self, segment: RemoteLogSegmentMetadata) -> tuple[bytes, bytes]:
        """Read the leader epochs up to the segment's end, and the producer snapshot there.

        The caller holds a slot. Raises as RemoteIndexCache.index.
        """
        epochs = self._cache.index(segment, IndexType.LEADER_EPOCH)
        return epochs, self._cache.index(segment, IndexType.PRODUCER_SNAPSHOT)

    def aborted_transactions(
        self,
        name: TopicIdPartition,
        lineage: Lineage,
        offset: int,
        end_offset: int,
        revision: int | None,
    ) -> FoundTransactions:
        """Read the next transaction index with transactions that end at or after `offset`.

        The caller holds a slot.

        Args:
            revision: of the partition, if it was read; what was found at it is not asked for again.

        Raises:
            CorruptSegmentError, RetriableRemoteStorageError: if the index cannot be read.
        """
        find = partial(self._next_index, name, lineage, offset, end_offset)
        segment, index, revisions = find(revision)
        missing: RemoteLogSegmentMetadata | None = None
        while segment is not None and not (index or segment.txn_idx_empty or segment == missing):
            # There is none, as in Kafka, or the segment was deleted: RLMM shows which, if it is
            # asked after the store.
            missing = segment
            segment, index, others = find(None)
            revisions |= others
        is_changed = revision is None or bool(revisions - {revision})
        if segment is None:
            return FoundTransactions((), None, is_changed)
        ranges = list(EpochRanges(lineage).of(segment))
        found = tuple(
            entry
            for entry in parse_aborted_txns(index)
            if any(max(first, offset) <= entry.last_offset <= last for first, last in ranges)
        )
        return FoundTransactions(found, max(segment.end_offset, offset) + 1, is_changed)

    def _next_index(
        self,
        name: TopicIdPartition,
        lineage: Lineage,
        offset: int,
        end_offset: int,
        revision: int | None,
    ) -> tuple[RemoteLogSegmentMetadata | None, bytes, set[int | None]]:
        """Find the next segment with a transaction index, and read that.

        Returns:
            The segment, its index, which is empty if the store has none, and the revisions of the
            partition at which RLMM answered; None if it does not know the partition any more.
        """
        revisions: set[int | None] = set()
        for epoch in lineage.between(offset, end_offset):
            try:
                answer = self.lookups.next_with_transactions(
                    name, epoch.leader_epoch, epoch.start_offset, revision
                )
            except RemoteResourceNotFoundError:
                return None, b"", revisions | {None}
            revisions.add(answer.revision)
            if answer.value is not None:
                index = self._cache.index(answer.value, IndexType.TRANSACTION)
                return answer.value, index, revisions
        return None, b"", revisions


def _size_of(segment: RemoteLogSegmentMetadata) -> int:
    size = segment.segment_size_in_bytes
    if size < 0:
        name = segment.remote_log_segment_id
        raise RemoteStorageError(
            f"segment {name} cannot be read: its metadata has no size; run `sediment scrub "
            f"--topic {name.topic_id_partition.topic}`"
        )
    return size


class TierRead:
    """Count one fetch in the tier's metrics. Single use.

    A fetch that the local log serves is not counted, and an offset out of range is not an error of
    the tier.

    Source: RemoteLogReader.
    """

    def __init__(self, counts: TopicCounts, topic: str) -> None:
        self._counts = counts
        self._topic = topic
        self._has_begun = False
        self._read_bytes = 0

    def got(self, source: RecordSource, size_bytes: int) -> None:
        """Count a batch that is returned."""
        if source is RecordSource.REMOTE:
            self._begin()
            self._read_bytes += size_bytes

    def end(self) -> None:
        """Publish the bytes of the fetch: once, because a fetch may have thousands of batches."""
        if self._read_bytes:
            self._counts.add(REMOTE_FETCH_BYTES, self._topic, self._read_bytes)

    def failed(self, error: Exception) -> None:
        """Count a failed fetch if the tier failed it."""
        if isinstance(error, (RemoteStorageError, LostSegmentError)):
            self._begin()
            self._counts.add(REMOTE_FETCH_ERRORS, self._topic)

    def _begin(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._counts.add(REMOTE_FETCH_REQUESTS, self._topic)
