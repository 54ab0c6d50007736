"""Which segments are to be copied: a pure rule over what is here and what the tier has."""

from collections.abc import Sequence

from services.api.validation import INT64_MAX
from services.rlm.kafka_log.partition_dir import LocalSegment
from services.rlm.local_log import LocalLog
from services.rlm.tier_view.offset_ranges import OffsetRanges


def candidate_log_segments(log: LocalLog, covered: OffsetRanges) -> list[LocalSegment]:
    """The rolled segments to copy, earliest first, all of them stable.

    Source: RemoteLogManager.candidateLogSegments.
    """
    uncopied = uncopied_log_segments(log, covered)
    return [segment for segment in uncopied if segment.end_offset < log.last_stable_offset]


def uncopied_log_segments(log: LocalLog, covered: OffsetRanges) -> list[LocalSegment]:
    """The rolled segments that the tier is to get, now or later, earliest first: all that reach the
    log's start (LocalLog.from_offset) and are not in it, also below what it begins with.

    What was deleted from the tier for good lies below the log's start, which rises before anything
    is deleted; below the tier's first segment lies also what a removal that was cut off has marked,
    and what the leader before never had. (Kafka goes on above the highest offset that was ever
    copied: where tiering was disabled and is enabled again it never copies what it had copied
    before.)
    """
    return [
        segment
        for segment in log.rolled
        if segment.end_offset >= log.log_start_offset and not _is_covered(segment, log, covered)
    ]


def in_tier(log: LocalLog, covered: OffsetRanges) -> list[LocalSegment]:
    """The rolled segments whose readable offsets are all in the tier."""
    return [segment for segment in log.rolled if _is_covered(segment, log, covered)]


def _is_covered(segment: LocalSegment, log: LocalLog, covered: OffsetRanges) -> bool:
    first = max(segment.base_offset, log.log_start_offset)
    return first <= segment.end_offset and covered.covers(first, segment.end_offset)


def lost_before_copy(
    log: LocalLog | None,
    covered: OffsetRanges,
    deleted_before_offset: int,
    emptied_before_offset: int = 0,
) -> list[tuple[int, int]]:
    """The ranges, both ends inclusive, that the broker deleted before they were copied: behind
    something that is or was in the tier, in it themselves no more than here. What is missing
    before the first that ever was there is none: the log may have begun there.

    What is missing below `deleted_before_offset` was deleted from the tier (Tier.
    deleted_before_offset), and below the log start that the broker wrote down on request
    (DeleteRecords). A request for all of a segment and no more leaves no such trace; it counts as
    lost.

    Args:
        emptied_before_offset: what lay below was in the tier, though nothing of it may be left
            (RaisedLogStart); 0: that is not known of anything.
    """
    there = list(covered)
    if emptied_before_offset > 0:
        there.append((0, emptied_before_offset - 1))
    if log is not None and there:
        there.append((log.segments[0].base_offset, INT64_MAX))
        deleted_before_offset = max(deleted_before_offset, log.removed_before_offset)
    gaps = OffsetRanges(there).gaps()
    return [
        (max(first, deleted_before_offset), last)
        for first, last in gaps
        if last >= deleted_before_offset
    ]


def copied_through_offset(
    covered: OffsetRanges,
    candidates: Sequence[LocalSegment],
    lost: Sequence[tuple[int, int]],
) -> int:
    """The last offset of the copied prefix, before the first segment that is to be copied and
    before the first of the lost ranges that are given; -1: none.

    Args:
        lost: those that stop it: a recorded gap is passed.
    """
    ends = [covered.last + 1]
    ends += [segment.base_offset for segment in candidates[:1]]
    ends += [first for first, _ in lost[:1]]
    below = covered.last_below(min(ends))
    return -1 if below is None else below
