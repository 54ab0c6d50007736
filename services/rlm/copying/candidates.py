"""Which segments are to be copied: a pure rule over what is here and what the tier has."""

from collections.abc import Sequence

from services.api.ids import TopicIdPartition
from services.api.lineage import Lineage
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.rlm.kafka_log.partition_dir import LocalSegment
from services.rlm.local_log import LocalLog
from services.rlm.tier_view.offset_ranges import OffsetRanges

MAX_INT64 = 2**63 - 1


def candidate_log_segments(
    log: LocalLog, covered: OffsetRanges, highest_copied_offset: int
) -> list[LocalSegment]:
    """The rolled segments to copy, earliest first, all of them stable.

    Source: RemoteLogManager.candidateLogSegments.
    """
    uncopied = uncopied_log_segments(log, covered, highest_copied_offset)
    return [segment for segment in uncopied if segment.end_offset < log.last_stable_offset]


def uncopied_log_segments(
    log: LocalLog, covered: OffsetRanges, highest_copied_offset: int
) -> list[LocalSegment]:
    """The rolled segments that the tier is to get, now or later, earliest first.

    Those above the highest copied offset, and any below it that has something copied before it but
    is not in the tier itself: the copied prefix must have no gap. (Kafka does not look for gaps.)
    What the tier once had at its beginning and no longer has was deleted from it and stays so, as
    does all that lies below the log's start (LocalLog.from_offset).
    """
    found = []
    for segment in log.rolled:
        end = segment.end_offset
        if end < log.log_start_offset or _is_covered(segment, log, covered):
            continue
        if end > highest_copied_offset or covered.last_below(segment.base_offset) is not None:
            found.append(segment)
    return found


def in_tier(log: LocalLog, covered: OffsetRanges) -> list[LocalSegment]:
    """The rolled segments whose readable offsets are all in the tier."""
    return [segment for segment in log.rolled if _is_covered(segment, log, covered)]


def _is_covered(segment: LocalSegment, log: LocalLog, covered: OffsetRanges) -> bool:
    first = max(segment.base_offset, log.log_start_offset)
    return first <= segment.end_offset and covered.covers(first, segment.end_offset)


def lost_before_copy(
    log: LocalLog | None, covered: OffsetRanges, deleted_before_offset: int
) -> list[tuple[int, int]]:
    """The ranges, both ends inclusive, that the broker deleted before they were copied: behind
    something that is in the tier, in it themselves no more than here.

    What is missing below `deleted_before_offset` was deleted from the tier (Tier.
    deleted_before_offset), and below the log start that the broker wrote down on request
    (DeleteRecords). A request for all of a segment and no more leaves no such trace; it counts as
    lost.
    """
    there = list(covered)
    if log is not None and there:
        there.append((log.segments[0].base_offset, MAX_INT64))
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


def find_highest_remote_offset(
    rlmm: RemoteLogMetadataManager,
    topic_id_partition: TopicIdPartition,
    lineage: Lineage,
    log_end_offset: int,
) -> int:
    """The highest offset ever copied in this lineage; -1: none.

    Source: RemoteLogManager.findHighestRemoteOffset: of the latest epoch that has one, and no
    further than that epoch goes.
    """
    for entry in reversed(lineage.entries):
        epoch = entry.leader_epoch
        highest = rlmm.highest_offset_for_epoch(topic_id_partition, epoch).value
        if highest is not None:
            return min(lineage.end_offset_for(epoch, log_end_offset) - 1, highest)
    return -1
