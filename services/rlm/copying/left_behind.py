"""What earlier attempts of this broker have left in the tier: ended before anything is copied."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.api.errors import RemoteStorageError
from services.api.segments import RemoteLogSegmentMetadata
from services.rlm.copying.pass_report import PassReport
from services.rlm.copying.segment_copy import (
    ENDED_BY_ANOTHER,
    RETRIABLE_ERRORS,
    SegmentCopier,
    is_attempt_of,
)
from services.rlm.tier_view.offset_ranges import OffsetRanges

MAX_LEFT_BEHIND = 1
"""Attempts at what is not in the tier yet that cannot be cleaned up, and for which copying goes on
at once."""
ANOTHER_AFTER_MS = 10 * 60 * 1000
"""How long after the latest of more than these another one may be begun: where the store takes
nothing at all, each pass would add one; where only a store of before is away, it gets through."""
ENOUGH_REFUSED = 10
"""Clean-ups that a pass tries in vain where they are refused for good."""


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """
    Attributes:
        elsewhere: copies that somebody else may be making under this broker's id: a process on
            another copy of the folder, as this one's lock tells, or the broker itself.
        attempts: those that could not be cleaned up.
        failure: why, of the last that was tried; None: there are none.
    """

    elsewhere: Sequence[RemoteLogSegmentMetadata] = ()
    attempts: Sequence[RemoteLogSegmentMetadata] = ()
    failure: RemoteStorageError | None = None

    def keeps_from_copying(self, covered: OffsetRanges, now_ms: int) -> bool:
        """Whether there are so many that no other may be begun for now. One that was followed by a
        copy that got through, whose offsets the tier has, tells nothing of the store."""
        at_uncopied = [s for s in self.attempts if not covered.covers(s.end_offset, s.end_offset)]
        latest_ms = [abs(now_ms - segment.event_timestamp_ms) for segment in at_uncopied]
        return len(at_uncopied) > MAX_LEFT_BEHIND and min(latest_ms) < ANOTHER_AFTER_MS


def end_left_behind(
    copier: SegmentCopier,
    broker_id: int,
    unfinished: Sequence[RemoteLogSegmentMetadata],
    report: PassReport,
) -> LeftBehind:
    """End what this broker has left behind among the tier's unfinished segments. What cannot be
    ended, as where a store of before is away or lets nothing be deleted, keeps nothing from being
    copied by itself: what is copied next has an id of its own.

    Raises:
        ENDED_BY_ANOTHER: one has ended otherwise; what the tier has is to be looked at again.
        RemoteStorageError: RLMM cannot be asked of them.
    """
    own = [segment for segment in unfinished if is_attempt_of(broker_id, segment)]
    elsewhere = copier.under_way_elsewhere(own)
    ids = {segment.remote_log_segment_id for segment in elsewhere}
    left_behind = [segment for segment in own if segment.remote_log_segment_id not in ids]
    refused: list[RemoteLogSegmentMetadata] = []
    failure: RemoteStorageError | None = None
    for number, segment in enumerate(left_behind):
        try:
            copier.clean_up(segment)
        except RemoteStorageError as e:
            if isinstance(e, ENDED_BY_ANOTHER) and copier.is_finished_or_gone(segment):
                raise
            refused.append(segment)
            failure = e
            if isinstance(e, RETRIABLE_ERRORS) or len(refused) == ENOUGH_REFUSED:
                # The others would wait for the same store, one after the other.
                return LeftBehind(elsewhere, [*refused, *left_behind[number + 1 :]], e)
        else:
            report.cleaned_attempts += 1
    return LeftBehind(elsewhere, refused, failure)
