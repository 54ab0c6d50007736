"""Find superseded segments: finished ones, all of whose records another finished one has.

One rule for a tail, which the rolled segment contains that was copied later, and for copies of the
same offsets by two leaders. Nothing is lost with a superseded segment: retention does not count it,
and the copy passes of the leader's RLM mark it for deletion.

A tail is a copy of the first records of a segment that is not copied as a whole yet, or of those
that follow another tail. It ends where the log ended then, so it says nothing about what a broker
may delete. Its id shows what it is (is_tail).
"""

from collections.abc import Iterable, Iterator

from services.api.ids import is_tail_uuid
from services.api.lineage import SegmentLineage
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


def is_tail(segment: RemoteLogSegmentMetadata) -> bool:
    """Return whether a segment is a tail: it is no reason to delete anything of a local log."""
    return is_tail_uuid(segment.remote_log_segment_id.id)


def superseded(
    segments: Iterable[RemoteLogSegmentMetadata], lineage: SegmentLineage
) -> Iterator[tuple[RemoteLogSegmentMetadata, RemoteLogSegmentMetadata]]:
    """Yield each superseded segment of the lineage, and one that has all of its records.

    Of equal ones all but one are yielded. Holds only segments that may share offsets with the next.

    Args:
        segments: in the order of start offsets; those that have not finished do not count.
    """
    live: list[RemoteLogSegmentMetadata] = []
    for segment in segments:
        if segment.state is not _FINISHED or not lineage.contains(segment):
            continue
        live = [other for other in live if other.end_offset >= segment.start_offset]
        better = next((other for other in live if _replaces(other, segment)), None)
        if better is not None:
            yield segment, better
            continue
        worse = [other for other in live if _replaces(segment, other)]
        yield from ((other, segment) for other in worse)
        live = [*(other for other in live if other not in worse), segment]


def covers(better: RemoteLogSegmentMetadata, worse: RemoteLogSegmentMetadata) -> bool:
    """Return whether a segment has every offset of another one, under the same leader epochs."""
    if better.start_offset > worse.start_offset or better.end_offset < worse.end_offset:
        return False
    ranges = better.epoch_ranges()
    return all(
        any(epoch == own and start <= first and last <= end for own, start, end in ranges)
        for epoch, first, last in worse.epoch_ranges()
    )


def _replaces(better: RemoteLogSegmentMetadata, worse: RemoteLogSegmentMetadata) -> bool:
    return covers(better, worse) and (not covers(worse, better) or _rank(better) > _rank(worse))


def _rank(segment: RemoteLogSegmentMetadata) -> tuple[bool, int, int, int]:
    """Return which of two equal segments stays: as a rule the one that look-ups prefer."""
    epoch, id = segment.broker_leader_epoch, segment.remote_log_segment_id.id
    return not is_tail(segment), -1 if epoch is None else epoch, segment.event_timestamp_ms, id.int
