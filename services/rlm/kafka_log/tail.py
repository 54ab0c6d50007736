"""Where a log ends and what is stable in it, from the batch headers of its active segment."""

from collections.abc import Sequence

from services.rlm.kafka_log.batches import walk_batches
from services.rlm.kafka_log.errors import BatchError, LogFileError
from services.rlm.kafka_log.partition_dir import (
    LocalSegment,
    list_snapshots,
    read_producer_snapshot,
    reading_segment,
    snapshot_path,
)
from services.rlm.kafka_log.transactions import Transactions
from services.rlm.kafka_log.windows import FileWindow

HEADERS_READ_AHEAD_BYTES = 64 * 1024


class LogTail:
    """Follows the end of one partition's log; each look reads only what is new. Not thread-safe.

    The active segment ends before the first batch that is not whole: a live broker may be writing
    it, a crashed one may have left it, and neither is trouble.

    Attributes:
        log_end_offset: the offset that the next record will get.
        end_position: where the last whole batch of the active segment ends.
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
        """Read on to the end of `segments`, of which there is at least one.

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
    """The transactions that are open at `offset`: of the newest valid producer snapshot at or
    below it, and of the batches from there on.

    Without a snapshot the walk begins at the log's start with none open, as a broker's recovery
    does. What follows a damaged batch in a rolled segment is not looked at: such a segment is held
    back, and everything behind it too.

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
