"""Find a log's open and aborted transactions, its end and its last stable offset."""

from collections.abc import Mapping, Sequence
from enum import Enum
from struct import Struct

from services.records.batches import HEADER_BYTES, Batch, BatchError, FileWindow, walk_batches
from services.records.index_files import AbortedTxn
from services.rlm.kafka_log.partition_dir import (
    LocalSegment,
    LogFileError,
    list_snapshots,
    read_producer_snapshot,
    reading_segment,
    snapshot_path,
)

_CONTROL_KEY = Struct(">hh")


class Marker(Enum):
    """The control record that ends a transaction, by its type number."""

    ABORT = 0
    COMMIT = 1


class Transactions:
    """Track the open transactions of a log, batch by batch.

    Attributes:
        open: producer id to the first offset of its open transaction.
    """

    def __init__(self, open_transactions: Mapping[int, int] | None = None) -> None:
        self.open = dict(open_transactions or {})

    def observe(self, batch: Batch) -> AbortedTxn | None:
        """Add the next batch of the log; return the transaction that it aborted, if any."""
        if batch.producer_id < 0 or not batch.is_transactional:
            return None
        if not batch.is_control:
            self.open.setdefault(batch.producer_id, batch.base_offset)
            return None
        marker = control_marker(batch)
        if marker is None:
            return None
        first = self.open.pop(batch.producer_id, None)
        # A marker of a transaction without data has no entry in the index.
        if first is None or marker is Marker.COMMIT:
            return None
        last = batch.base_offset
        stable = min(self.open.values(), default=last + 1)
        return AbortedTxn(batch.producer_id, first, last, stable)

    def last_stable_offset(self, log_end_offset: int) -> int:
        """Return the first offset of the oldest open transaction, or else `log_end_offset`."""
        return min(self.open.values(), default=log_end_offset)


def control_marker(batch: Batch) -> Marker | None:
    """Read the marker of a control batch; None for other kinds of control record."""
    record = batch.data[HEADER_BYTES:]
    _, at = _varint(record, 0)  # length of the record
    at += 1  # attributes
    _, at = _varint(record, at)  # timestamp delta
    _, at = _varint(record, at)  # offset delta
    key_length, at = _varint(record, at)
    if key_length < _CONTROL_KEY.size or at + _CONTROL_KEY.size > len(record):
        return None
    _, number = _CONTROL_KEY.unpack_from(record, at)
    return Marker(number) if number in (0, 1) else None


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Read the zig-zag number at `at` and its end; (0, end) if `at` is after the data."""
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return (value >> 1) ^ -(value & 1), at


HEADERS_READ_AHEAD_BYTES = 64 * 1024


class LogTail:
    """Follow the end of one partition's log, reading only new batches. Not thread-safe.

    The active segment ends before the first incomplete batch: a live broker may be writing it, or a
    crashed one may have left it; neither is a problem.

    Attributes:
        log_end_offset: the offset of the next record.
        end_position: the end position of the last complete batch of the active segment.
    """

    def __init__(self) -> None:
        self.log_end_offset = 0
        self.end_position = 0
        self._base_offset = -1
        self._transactions = Transactions()

    @property
    def last_stable_offset(self) -> int:
        return self._transactions.last_stable_offset(self.log_end_offset)

    def follow(self, segments: Sequence[LocalSegment]) -> None:
        """Read to the end of `segments`, of which there is at least one.

        Raises:
            SegmentVanishedError: list the directory again.
            LogFileError: UNREADABLE.
        """
        active = segments[-1]
        if active.base_offset != self._base_offset or active.size_bytes < self.end_position:
            self._transactions = transactions_at(segments, active.base_offset)
            self._base_offset = self.log_end_offset = active.base_offset
            self.end_position = 0
        if active.size_bytes > self.end_position:
            self._read_on(active)

    def _read_on(self, active: LocalSegment) -> None:
        with (
            reading_segment(active.log_path),
            FileWindow(active.log_path, HEADERS_READ_AHEAD_BYTES) as window,
        ):
            batches = walk_batches(
                window, self.end_position, active.size_bytes, self.log_end_offset, verify=False
            )
            try:
                for batch in batches:
                    self._transactions.observe(batch)
                    self.log_end_offset = batch.last_offset + 1
                    self.end_position = batch.next_position
            except BatchError:
                return


def transactions_at(segments: Sequence[LocalSegment], offset: int) -> Transactions:
    """Find the transactions that are open at `offset`.

    They are those of the newest valid producer snapshot not above it, updated by the batches that
    follow. Without a snapshot, the search starts at the log's start with none open, as a broker's
    recovery does. Batches after a damaged one in a rolled segment are skipped: neither such a
    segment nor any later one is copied.

    Raises:
        SegmentVanishedError: list the directory again.
        LogFileError: UNREADABLE.
    """
    start, transactions = _newest_snapshot(segments, offset)
    for segment in segments:
        if segment.base_offset >= offset:
            break
        if segment.is_rolled and segment.end_offset >= start:
            _observe_from(segment, start, offset, transactions)
    return transactions


def _newest_snapshot(segments: Sequence[LocalSegment], offset: int) -> tuple[int, Transactions]:
    directory = segments[0].directory
    for at in reversed(list_snapshots(directory)):
        if at <= offset:
            try:
                _, still_open = read_producer_snapshot(snapshot_path(directory, at))
            except LogFileError:
                continue
            return at, Transactions(still_open)
    return segments[0].base_offset, Transactions()


def _observe_from(
    segment: LocalSegment, start: int, offset: int, transactions: Transactions
) -> None:
    with (
        reading_segment(segment.log_path),
        FileWindow(segment.log_path, HEADERS_READ_AHEAD_BYTES) as window,
    ):
        size, base = segment.size_bytes, segment.base_offset
        try:
            for batch in walk_batches(window, 0, size, base, verify=False):
                if start <= batch.base_offset < offset:
                    transactions.observe(batch)
        except BatchError:
            return
