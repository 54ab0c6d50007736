"""New segments of one partition that come to their states one after another.

What a segment that finishes displaces depends on what finished before it, so that in general they
are shown one by one. A copy that goes on where all before it ended displaces nothing: a run of such
is written at once.
"""

from collections.abc import Iterator, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.rlmm import visibility
from services.rlmm.appended_segments import show_appended
from services.rlmm.tables import HighestOffsetRow

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


def note_in_order(session: Session, segments: Sequence[RemoteLogSegmentMetadata]) -> None:
    """Have lists and look-ups answer as if the segments had been added, and the finished ones had
    finished, in this order."""
    copies = [s for s in segments if s.state not in (FINISHED, DELETE_FINISHED)]
    visibility.note_copies_started(session, copies)
    finished = [s for s in segments if s.state is FINISHED]
    for run in _runs(finished, _highest_offsets(session, finished)):
        if len(run) > 1:
            show_appended(session, run)
        else:
            visibility.note_copies_started(session, run)
            visibility.show(session, [run[0].remote_log_segment_id])


def _runs(
    segments: Sequence[RemoteLogSegmentMetadata], highest_offsets: dict[int, int]
) -> Iterator[list[RemoteLogSegmentMetadata]]:
    """As show_appended takes them; what does not go on so is a run by itself.

    Args:
        highest_offsets: by leader epoch, what had finished before the first segment.
    """
    highest_offsets = dict(highest_offsets)
    run: list[RemoteLogSegmentMetadata] = []
    for segment in segments:
        ranges = segment.epoch_ranges()
        if all(highest_offsets.get(epoch, -1) < start <= end for epoch, start, end in ranges):
            run.append(segment)
        else:
            if run:
                yield run
            yield [segment]
            run = []
        for epoch, _, end in ranges:
            highest_offsets[epoch] = max(highest_offsets.get(epoch, -1), end)
    if run:
        yield run


def _highest_offsets(
    session: Session, segments: Sequence[RemoteLogSegmentMetadata]
) -> dict[int, int]:
    """By leader epoch, of those that the segments have."""
    if not segments:
        return {}
    tp = segments[0].topic_id_partition
    epochs = {each.leader_epoch for segment in segments for each in segment.segment_leader_epochs}
    rows = session.execute(
        select(HighestOffsetRow.leader_epoch, HighestOffsetRow.highest_offset).where(
            HighestOffsetRow.topic_id == tp.topic_id,
            HighestOffsetRow.partition == tp.partition,
            HighestOffsetRow.leader_epoch.in_(epochs),
        )
    )
    return {row.leader_epoch: row.highest_offset for row in rows}
