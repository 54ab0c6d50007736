"""Find the offsets that a broker deleted before their copy."""

from services.api.validation import INT64_MAX
from services.rlm.kafka_log.local_log import LocalLog
from services.rlm.partition import Partition
from services.rlm.tier import OffsetRanges, Tier


def lost_before_copy(
    log: LocalLog | None,
    covered: OffsetRanges,
    deleted_before_offset: int,
    begins_at: int | None = None,
) -> list[tuple[int, int]]:
    """Return the offset ranges, both ends inclusive, that the broker deleted before their copy.

    Lost ranges follow offsets that are or were in the tier, or `begins_at`; others before the first
    one in the tier are not lost: the log may begin there. Neither are those below
    `deleted_before_offset` (Tier's), nor those below the broker's recorded log start: DeleteRecords
    deleted them. A request that ends exactly with a segment leaves no such record.

    Args:
        begins_at: the offset from which on all were to be copied: those below were once in the
            tier (LogStartCause), or the log began there (LogBeginning); None if unknown.
    """
    ranges = list(covered)
    if begins_at is not None and not (ranges and ranges[0][0] < begins_at):
        ranges.append((-1, begins_at - 1))
    if log is not None and ranges:
        ranges.append((log.segments[0].base_offset, INT64_MAX))
        deleted_before_offset = max(
            deleted_before_offset, log.removed_before_offset, log.awaited_log_start_offset
        )
    gaps = OffsetRanges(ranges).gaps()
    return [
        (max(first, deleted_before_offset), last)
        for first, last in gaps
        if last >= deleted_before_offset
    ]


def lost_ranges(
    partition: Partition,
    log: LocalLog | None,
    covered: OffsetRanges,
    tier: Tier,
    *,
    refresh: bool = True,
) -> list[tuple[int, int]]:
    """Return the lost offset ranges (lost_before_copy).

    RLMM is called only if offsets are missing right after the tier's log start.

    Args:
        refresh: if False, use the last answer of RLMM.
    """
    beginning = partition.tier.beginning.cached

    def lost_from(raised_log_start: int) -> list[tuple[int, int]]:
        begins_at = raised_log_start or beginning
        return lost_before_copy(log, covered, tier.deleted_before_offset, begins_at)

    lost = lost_from(tier.log_start_offset)
    if lost == lost_from(0):
        return lost
    cause = partition.tier.log_start_cause
    return lost_from(cause.refresh(tier) if refresh else cause.cached(tier))
