"""Open one segment at an offset, from the local log or from the tier."""

import os
import time
from bisect import bisect_right
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from services.api.errors import RemoteStorageError
from services.api.remote_log_manager import FetchRole
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.remote_storage_manager import IndexType
from services.api.segments import RemoteLogSegmentMetadata
from services.api.validation import INT64_MAX
from services.common.bounded_file import open_regular
from services.common.fair_queue import MOST_CHARGED_S, QuotaLimit
from services.records.batches import NO_CLAIMS, BatchError, Claims, FileWindow
from services.records.index_files import OFFSET_ENTRY
from services.records.runs import AdmitBatch, BatchRun, IndexEntry, SegmentBytes, runs_from
from services.rlm.fetch.chunk_cache import Chunk, ChunkCache
from services.rlm.fetch.errors import ReadThrottledError
from services.rlm.fetch.index_cache import RemoteIndexCache
from services.rlm.fetch.read_ahead import (
    SKIPPED_AHEAD_BYTES,
    NextSegment,
    SegmentWindow,
    SequentialRead,
    SequentialReads,
)
from services.rlm.fetch.segment_lookups import SegmentLookUps
from services.rlm.fetch.tier_calls import TierCalls, TierWait
from services.rlm.kafka_log.partition_dir import LocalSegment, reading_segment
from services.rlm.metrics import FETCH_THROTTLE_SECONDS


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
    segment: LocalSegment, offset: int, end_offset: int, admit: AdmitBatch
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
        yield from runs_from(source, offset, entry, admit)


@dataclass(frozen=True, slots=True)
class MetadataAges:
    """The ages that the cached state of a tier may have for a reader, seconds.

    Attributes:
        recent_s: to read in a segment that RLM knows.
        stale_s: while RLMM is unreachable.
    """

    recent_s: float = 0.0
    stale_s: float = 0.0


class RemoteSegmentReader:
    """Read segments of the tier, a limited number at once. Thread-safe.

    Its callers hold a slot of `calls`.
    """

    def __init__(
        self,
        rlmm: RemoteLogMetadataManager,
        indexes: RemoteIndexCache,
        chunks: ChunkCache,
        clock: Callable[[], float] = time.monotonic,
        *,
        calls: TierCalls | None = None,
        quota: QuotaLimit | None = None,
        ages: MetadataAges | None = None,
    ) -> None:
        self.lookups = SegmentLookUps(rlmm)
        self.indexes = indexes
        self._chunks = chunks
        self._reads = SequentialReads()
        self.calls = calls or TierCalls()
        self._quota = (quota or QuotaLimit()).bucket("remote reads", clock)
        self._ages = ages or MetadataAges()

    def ages_for(self, role: FetchRole) -> MetadataAges:
        """Return how old metadata may be for such a reader."""
        if role is not FetchRole.CONSUMER:
            return MetadataAges()  # A replica must not rely on what may have changed.
        return self._ages

    def runs(
        self,
        segment: RemoteLogSegmentMetadata,
        offset: int,
        admit: AdmitBatch,
        expected_bytes: int,
        end_offset: int = INT64_MAX,
        next_segment: NextSegment = lambda: None,
        wait: TierWait | None = None,
    ) -> Generator[BatchRun, None, None]:
        """Read the batches of a remote segment from `offset` to `end_offset` (exclusive).

        Close it to end the read early.

        Args:
            admit: as for runs_from.
            expected_bytes: about how much will be read; little more is requested from the store,
                unless an earlier read ended at `offset`.
            next_segment: finds the segment that such a reader reads next.
            wait: for the next bytes; those that arrive later are cached for the next read.

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
        entry, start, skipped_bytes = self._place_of(segment, offset, read)
        limit = wait or TierWait(self.calls.wait_s)
        readers = self._reads.active()
        window = SegmentWindow(
            self._chunks, segment, expected_bytes, read, limit, next_segment, readers, skipped_bytes
        )
        try:
            with closing(window):
                claims = Claims.of(segment)
                source = SegmentBytes(window, segment.start_offset, size, end_offset, claims)
                for run in runs_from(source, offset, entry, admit, start):
                    read_bytes += run.size_bytes
                    read.ended_in, read.ended_at = segment_id, run.next_position
                    is_last = run.next_position >= size
                    next_offset = segment.end_offset if is_last else run.last_offset
                    next_offset += 1
                    yield run
        except BatchError:
            # The next read may get other bytes from the store.
            self._chunks.remove([segment.remote_log_segment_id])
            raise
        finally:
            if read_bytes:
                read.run_bytes += read_bytes
                self._reads.end(partition, next_offset, read)

    def load_index(self, segment: RemoteLogSegmentMetadata, offset: int) -> bool:
        """Load what `runs` needs of a segment's index into the cache; raises as `runs`."""
        name = segment.remote_log_segment_id.topic_id_partition
        self._place_of(segment, offset, self._reads.upcoming(name, offset))
        return True

    def has_index(self, segment: RemoteLogSegmentMetadata, offset: int) -> bool:
        """Return whether what `runs` needs of a segment's index is in memory."""
        name = segment.remote_log_segment_id.topic_id_partition
        read = self._reads.upcoming(name, offset)
        return not self._needs_index(segment, offset, read) or (
            self.indexes.in_memory(segment, IndexType.OFFSET) is not None
        )

    def request_first(
        self, segment: RemoteLogSegmentMetadata, offset: int, expected_bytes: int
    ) -> Chunk:
        """Request the first bytes of a read that follows, without waiting for them.

        Release the chunk with `release` after the read.

        Raises:
            ThrottledError: too many requests to the store are active.
            RemoteStorageError: as `runs`.
        """
        _size_of(segment)
        name = segment.remote_log_segment_id.topic_id_partition
        read, wait = self._reads.upcoming(name, offset), TierWait(self.calls.wait_s)
        entry, start, skipped_bytes = self._place_of(segment, offset, read)
        window = SegmentWindow(
            self._chunks,
            segment,
            expected_bytes,
            read,
            wait,
            lambda: None,
            skipped_bytes=skipped_bytes,
        )
        return window.request_first(start if entry is None else max(entry[1], 0))

    def release(self, chunk: Chunk) -> None:
        """Release the chunk of `request_first`."""
        self._chunks.release(chunk)

    def _place_of(
        self, segment: RemoteLogSegmentMetadata, offset: int, read: SequentialRead
    ) -> tuple[IndexEntry | None, int, int]:
        """Return the index's entry for an offset, where to begin if there is none, and how much to
        skip from there on."""
        if self._needs_index(segment, offset, read):
            return self.indexes.offset_index(segment).lookup(offset), 0, SKIPPED_AHEAD_BYTES
        return None, read.ended_at if read.ended_in == segment.remote_log_segment_id else 0, 0

    @staticmethod
    def _needs_index(segment: RemoteLogSegmentMetadata, offset: int, read: SequentialRead) -> bool:
        """Return whether only the index shows where a reader begins.

        Not if it continues, nor for the segment's first offset.
        """
        return read.ended_in != segment.remote_log_segment_id and offset > segment.start_offset

    def require_quota(self) -> None:
        """Raise ReadThrottledError if the fetch quota is used up."""
        _require_no_debt(self._quota.owed_s())

    def reserve_quota(self, expected_bytes: int) -> int:
        """Charge the fetch quota for a read before it begins, for concurrent reads to count.

        `settle_quota` follows.

        Returns:
            How many bytes the read may return.

        Raises:
            ReadThrottledError: if the quota is used up.
        """
        reserved, owed_s = self._quota.reserve(expected_bytes)
        _require_no_debt(owed_s)
        return int(reserved)

    def settle_quota(self, reserved_bytes: int, fetched_bytes: int) -> None:
        """Correct the charge of `reserve_quota` by what the read returned."""
        more_bytes = fetched_bytes - reserved_bytes
        self._quota.spend_at_once(min(more_bytes, self._quota.rate_per_s * MOST_CHARGED_S))


def _require_no_debt(owed_s: float) -> None:
    if owed_s > 0:
        FETCH_THROTTLE_SECONDS.observe(owed_s)
        raise ReadThrottledError(owed_s)


def _size_of(segment: RemoteLogSegmentMetadata) -> int:
    size = segment.segment_size_in_bytes
    if size < 0:
        name = segment.remote_log_segment_id
        raise RemoteStorageError(
            f"segment {name} cannot be read: its metadata has no size; run `sediment scrub "
            f"--topic {name.topic_id_partition.topic}`"
        )
    return size
