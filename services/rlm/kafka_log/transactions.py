"""Find a log's open and aborted transactions, its end and its last stable offset."""

from bisect import bisect_right
from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from operator import itemgetter

from services.api.lineage import Lineage
from services.records.batches import (
    HEADER_BYTES,
    Batch,
    BatchError,
    FileWindow,
    is_blank,
    verified,
    walk_batches,
)
from services.records.index_files import EMPTY_PRODUCER_SNAPSHOT, open_transactions
from services.records.producers import Producers
from services.records.segment_indexes import Transactions
from services.rlm.kafka_log.partition_dir import (
    HEADERS_READ_AHEAD_BYTES,
    LocalSegment,
    LogFileError,
    list_snapshots,
    read_producer_snapshot,
    reading_segment,
    snapshot_path,
)

MAX_HISTORY = 50_000
"""The most changes of the oldest open transaction that are kept above the high watermark."""


class ProducerReplay:
    """Make producer snapshots that a broker has lost or never wrote, reading each header once.

    Segments from before Kafka 2.8 have none, and nor has the middle of a segment. Not thread-safe.

    Attributes:
        position: of the first batch that the latest snapshot does not have, in a segment that
            begins below its offset.
    """

    def __init__(self) -> None:
        self._lineage: Lineage | None = None
        self._producers = Producers()
        self._offset = self._base_offset = -1
        self.position = 0

    def snapshot_at(
        self, segments: Sequence[LocalSegment], lineage: Lineage, offset: int
    ) -> bytes | None:
        """Return the snapshot at `offset`, where a batch begins; None if the log is damaged.

        Replays from the newest valid snapshot not above it, or else from the log's start, as a
        broker's recovery does (UnifiedLog.rebuildProducerState).
        """
        if lineage != self._lineage or offset < self._offset:
            # Another leader may have replaced records.
            self._lineage, self._offset, self._base_offset = lineage, -1, -1
        if self._offset < max(s.base_offset for s in segments if s.base_offset <= offset):
            start, stored = _newest_snapshot(segments, offset)
            if start > self._offset:
                self._producers = Producers(stored or EMPTY_PRODUCER_SNAPSHOT)
                self._offset = start
        for segment in segments:
            is_below = not segment.is_rolled or self._offset <= segment.end_offset
            if segment.base_offset < offset and is_below and not self._replay(segment, offset):
                self._offset = -1
                return None
        return self._producers.snapshot() if self._offset == offset else None

    def _replay(self, segment: LocalSegment, until_offset: int) -> bool:
        """Add the batches of a segment that begin below an offset; return False if one is damaged.

        Continues in the segment where it ended the last time.
        """
        if segment.base_offset != self._base_offset:
            self._base_offset, self.position = segment.base_offset, 0
        try:
            with closing(_batches_of(segment, self.position)) as batches:
                for batch in batches:
                    if batch.base_offset >= until_offset:
                        break
                    if batch.base_offset >= self._offset:
                        self._producers.observe(batch)
                    self.position = batch.next_position
        except BatchError:
            self._base_offset = -1
            return False
        is_whole = segment.is_rolled and segment.end_offset < until_offset
        self._offset = segment.end_offset + 1 if is_whole else until_offset
        return True


def _batches_of(segment: LocalSegment, position: int = 0) -> Generator[Batch, None, None]:
    """Read the headers of a segment's batches; raise BatchError at a damaged one."""
    path, base_offset = segment.log_path, segment.base_offset
    with reading_segment(path), FileWindow(path, HEADERS_READ_AHEAD_BYTES) as window:
        yield from walk_batches(window, position, segment.size_bytes, base_offset, verify=False)


class LogTail:
    """Follow the end of one partition's log, reading only new batches. Not thread-safe.

    The active segment ends before the first incomplete batch: a live broker may be writing it, or a
    crashed one may have left it; neither is a problem. In a preallocated file that is the first
    batch without its header, or the last one if its CRC is wrong.

    Attributes:
        log_end_offset: the offset of the next record.
        end_position: the end position of the last complete batch of the active segment.
    """

    def __init__(self) -> None:
        self.log_end_offset = 0
        self.end_position = 0
        self._base_offset = -1
        self._transactions = Transactions()
        # From which offset on which transaction is the oldest open one, by its first offset.
        self._oldest_open: list[tuple[int, int | None]] = []
        self._below_segment: tuple[int, int] | None = None

    def last_stable_offset(self, segments: Sequence[LocalSegment], high_watermark: int) -> int:
        """Return the end of what no transaction can change that is open at `high_watermark`.

        A transaction whose end is not below it is open: the next leader may not have its end.

        Source: ProducerStateManager.firstUnstableOffset.
        """
        at = bisect_right(self._oldest_open, high_watermark, key=itemgetter(0))
        if at == 0:
            # The log was first read when its active segment began above the high watermark; or that
            # fell or stands still below a long history, and the segment's beginning is low enough.
            offset = min(high_watermark, self._base_offset)
            if self._below_segment is None or self._below_segment[0] != offset:
                stable = transactions_at(segments, offset).last_stable_offset(offset)
                self._below_segment = offset, stable
            return self._below_segment[1]
        del self._oldest_open[: at - 1]
        first = self._oldest_open[0][1]
        return high_watermark if first is None else min(first, high_watermark)

    def follow(self, segments: Sequence[LocalSegment]) -> None:
        """Read to the end of `segments`, of which there is at least one."""
        active = segments[-1]
        if active.base_offset != self._base_offset or active.file_bytes < self.end_position:
            history = self._history_before(segments)
            self._transactions = transactions_at(segments, active.base_offset)
            self._base_offset = self.log_end_offset = active.base_offset
            self.end_position = 0
            self._below_segment = None
            self._oldest_open = [*history, (active.base_offset, self._transactions.first_open)]
        if active.file_bytes > self.end_position:
            self._read_batches(active)

    def _history_before(self, segments: Sequence[LocalSegment]) -> list[tuple[int, int | None]]:
        """Return the history up to the active segment, if only a roll came between.

        For some seconds after a roll the high watermark is below the active segment.
        """
        if len(segments) < 2 or segments[-2].base_offset != self._base_offset:
            return []
        if segments[-2].file_bytes > self.end_position:
            self._read_batches(segments[-2])
        return self._oldest_open if self.log_end_offset == segments[-1].base_offset else []

    def _read_batches(self, active: LocalSegment) -> None:
        path = active.log_path
        # An idle partition's preallocated file costs this small read each time.
        with reading_segment(path), FileWindow(path, HEADER_BYTES) as window:
            if is_blank(window, self.end_position):
                return
        with reading_segment(path), FileWindow(path, HEADERS_READ_AHEAD_BYTES) as window:
            batches = walk_batches(
                window, self.end_position, active.file_bytes, self.log_end_offset, verify=False
            )
            try:
                for batch in batches:
                    if batch.next_position < active.file_bytes and is_blank(
                        window, batch.next_position
                    ):
                        verified(window, batch)
                    self._observe(batch)
                    self.log_end_offset = batch.last_offset + 1
                    self.end_position = batch.next_position
            except BatchError:
                return

    def _observe(self, batch: Batch) -> None:
        self._transactions.observe(batch)
        before = self._oldest_open[-1][1]
        # A transaction that begins is not the oldest, unless it is alone.
        if not batch.is_transactional or not (batch.is_control or before is None):
            return
        first = self._transactions.first_open
        if first != before:
            self._oldest_open.append((batch.base_offset + 1, first))
            if len(self._oldest_open) > MAX_HISTORY:
                del self._oldest_open[: MAX_HISTORY // 2]


def transactions_at(segments: Sequence[LocalSegment], offset: int) -> Transactions:
    """Find the transactions that are open at `offset`.

    They are those of the newest valid producer snapshot not above it, updated by the batches that
    follow. Without a snapshot, the search starts at the log's start with none open, as a broker's
    recovery does. Batches after a damaged one in a rolled segment are skipped: neither such a
    segment nor any later one is copied.
    """
    start, snapshot = _newest_snapshot(segments, offset)
    transactions = Transactions(None if snapshot is None else open_transactions(snapshot))
    for segment in segments:
        if segment.base_offset >= offset:
            break
        if segment.is_rolled and segment.end_offset >= start:
            with suppress(BatchError), closing(_batches_of(segment)) as batches:
                for batch in batches:
                    if batch.base_offset >= offset:
                        break
                    if batch.base_offset >= start:
                        transactions.observe(batch)
    return transactions


def _newest_snapshot(segments: Sequence[LocalSegment], offset: int) -> tuple[int, bytes | None]:
    """Return the newest valid snapshot not above `offset`, or else the log's start and None."""
    directory = segments[0].directory
    for at in reversed(list_snapshots(directory)):
        if at <= offset:
            try:
                return at, read_producer_snapshot(snapshot_path(directory, at))[0]
            except LogFileError:
                continue
    return segments[0].base_offset, None
