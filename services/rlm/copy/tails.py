"""Copy tails: the records behind the last copy, before their segment is copied as a whole.

A tail begins behind what the tier has and ends with the last batch below the last stable offset. It
lies in one segment of the log, which may be active. When that segment is copied, its tails are
superseded (services.api.superseded). So each byte is sent twice at most.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from crc32c import crc32c

from services.api.lineage import Lineage, checkpoint_text
from services.api.remote_log_manager import ProblemKind
from services.api.remote_storage_manager import SegmentFile
from services.records.batches import BatchError, FileWindow, walk_batches
from services.records.index_files import open_transactions
from services.records.segment_indexes import IndexBuilder, Transactions
from services.rlm.copy.inspection import InspectedSegment, leader_epochs
from services.rlm.kafka_log.local_log import LocalLog
from services.rlm.kafka_log.partition_dir import LocalSegment, LogFileError, reading_segment
from services.rlm.kafka_log.transactions import ProducerReplay
from services.rlm.tier import OffsetRanges


@dataclass(frozen=True, slots=True)
class Tail:
    """The offsets from `start_offset` on that may be copied, up to below `stable_offset`."""

    segment: LocalSegment
    start_offset: int
    stable_offset: int


def next_tail(log: LocalLog, covered: OffsetRanges) -> Tail | None:
    """Return the tail behind what the tier has; None if nothing stable follows.

    Args:
        log: from the tier's log start on, with the lowest known last stable offset.
        covered: by tails, too.
    """
    segment = log.segment_for(max(log.log_start_offset, covered.last + 1))
    if segment is None:
        return None
    start = max(segment.base_offset, covered.last + 1)
    stable = log.last_stable_offset
    return Tail(segment, start, stable) if start < stable else None


class TailAge:
    """Know for how long the next tail has waited. Not thread-safe.

    A tail is as old as the time since its first record was first seen behind the last copy, on a
    monotonic clock. The log's modification time moves with each record, so that a tail of a
    busy log would never get old; the timestamps of records are their producers'. A process that
    starts counts from its start.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start_offset = -1
        self._since_s = 0.0

    def is_due(self, tail: Tail | None, tail_ms: int | None) -> bool:
        """Return whether a tail has waited long enough."""
        if tail is None or tail_ms is None:
            self._start_offset = -1
            return False
        if tail.start_offset != self._start_offset:
            self._start_offset, self._since_s = tail.start_offset, self._clock()
        return self._clock() - self._since_s >= tail_ms / 1000


def inspect_tail(
    tail: Tail,
    segments: Sequence[LocalSegment],
    lineage: Lineage,
    log_start_offset: int,
    producers: ProducerReplay,
) -> InspectedSegment | None:
    """Check a tail and build its files; None if no whole batch of it is stable.

    Arguments as of `inspect`.

    Raises:
        LogFileError: TRUNCATED_BATCH, CORRUPT_BATCH, OLD_MESSAGE_FORMAT, LEADER_EPOCHS_MISSING,
            PRODUCER_SNAPSHOT_MISSING, UNREADABLE.
    """
    start, path = tail.start_offset, tail.segment.log_path
    before = producers.snapshot_at(segments, lineage, start)
    if before is None:
        raise _no_snapshot(tail)
    first = at = producers.position if start > tail.segment.base_offset else 0
    builder = IndexBuilder(start, Transactions(open_transactions(before)))
    crc, end = 0, start - 1
    try:
        with reading_segment(path), FileWindow(path) as window:
            modified_ms = window.last_modified_ms
            for batch in walk_batches(window, first, tail.segment.size_bytes, start, verify=True):
                if batch.last_offset >= tail.stable_offset:
                    break
                crc = crc32c(batch.data, crc)
                builder.observe(batch._replace(position=batch.position - first))
                end, at = batch.last_offset, batch.next_position
    except BatchError as e:
        raise LogFileError(e.kind, path, str(e), e.offset) from e
    if end < max(start, log_start_offset):
        return None
    snapshot = producers.snapshot_at(segments, lineage, end + 1)
    if snapshot is None:
        raise _no_snapshot(tail)
    side_files = {
        SegmentFile.OFFSET: builder.offset_index(),
        SegmentFile.TIMESTAMP: builder.time_index(),
        SegmentFile.PRODUCER_SNAPSHOT: snapshot,
        SegmentFile.LEADER_EPOCH: checkpoint_text(lineage.before(end + 1).entries).encode("ascii"),
    }
    if builder.aborted:
        side_files[SegmentFile.TRANSACTION] = builder.transaction_index()
    return InspectedSegment(
        tail.segment,
        at - first,
        crc,
        builder.max_timestamp_ms if builder.max_timestamp_ms >= 0 else modified_ms,
        leader_epochs(tail.segment, start, end, lineage, log_start_offset),
        side_files,
        rebuilt=(),
        start_offset=start,
        end_offset=end,
        first_position=first,
        is_tail=True,
    )


def _no_snapshot(tail: Tail) -> LogFileError:
    kind, path = ProblemKind.PRODUCER_SNAPSHOT_MISSING, tail.segment.log_path
    reason = "no producer snapshot can be replayed for a tail: the log before it is damaged"
    return LogFileError(kind, path, reason, tail.start_offset)
