"""Delete the dangling copies of this broker, which no running process is making."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.api.errors import RemoteStorageError
from services.api.segments import RemoteLogSegmentMetadata
from services.common.retry import RETRIABLE_ERRORS
from services.rlm.copy.report import PassReport
from services.rlm.copy.segment import ENDED_BY_ANOTHER, SegmentCopier, is_attempt_of
from services.rlm.tier import OffsetRanges

MAX_DANGLING_COPIES = 1
"""Copying continues with at most so many dangling copies of offsets that are not in the tier."""

DANGLING_PAUSE_MS = 10 * 60 * 1000
"""With more dangling copies, another copy may begin so long after the latest one. If the store
accepts nothing, each pass would add one; if only an earlier store is down, the copy succeeds."""

MAX_REFUSALS = 10
"""A pass stops cleaning up after so many permanent refusals."""


@dataclass(frozen=True, slots=True)
class DanglingCopies:
    """The unfinished copies of this broker that were not deleted.

    Attributes:
        elsewhere: copies that another process may be making under this broker's id: an RLM on
            another copy of the folder, or the broker itself.
        attempts: dangling copies that could not be deleted.
        failure: the error of the last one; None if there are none.
    """

    elsewhere: Sequence[RemoteLogSegmentMetadata] = ()
    attempts: Sequence[RemoteLogSegmentMetadata] = ()
    failure: RemoteStorageError | None = None

    def stops_copying(self, covered: OffsetRanges, now_ms: int) -> bool:
        """Return whether there are too many dangling copies to begin another copy now.

        A dangling copy of offsets in the tier does not count: a later copy succeeded.
        """
        at_missing = [s for s in self.attempts if not covered.covers(s.end_offset, s.end_offset)]
        latest_ms = [abs(now_ms - segment.event_timestamp_ms) for segment in at_missing]
        return len(at_missing) > MAX_DANGLING_COPIES and min(latest_ms) < DANGLING_PAUSE_MS


def end_dangling_copies(
    copier: SegmentCopier,
    broker_id: int,
    unfinished: Sequence[RemoteLogSegmentMetadata],
    report: PassReport,
) -> DanglingCopies:
    """Delete this broker's dangling copies among the tier's unfinished segments.

    A copy that cannot be deleted, because an earlier store is down or refuses deletes, does not
    stop copying: the next attempt has its own id.

    Raises:
        ENDED_BY_ANOTHER: if another process ended one; refresh the tier and retry.
    """
    own = [segment for segment in unfinished if is_attempt_of(broker_id, segment)]
    elsewhere = copier.active_copies_elsewhere(own)
    ids = {segment.remote_log_segment_id for segment in elsewhere}
    dangling = [segment for segment in own if segment.remote_log_segment_id not in ids]
    refused: list[RemoteLogSegmentMetadata] = []
    failure: RemoteStorageError | None = None
    for number, segment in enumerate(dangling):
        try:
            copier.clean_up(segment)
        except RemoteStorageError as e:
            if isinstance(e, ENDED_BY_ANOTHER) and copier.is_finished_or_gone(segment):
                raise
            refused.append(segment)
            failure = e
            if isinstance(e, RETRIABLE_ERRORS) or len(refused) == MAX_REFUSALS:
                # The others would each wait for the same store.
                return DanglingCopies(elsewhere, [*refused, *dangling[number + 1 :]], e)
        else:
            report.cleaned_attempts += 1
    return DanglingCopies(elsewhere, refused, failure)
