"""What the broker deleted before it was copied: recorded in RLMM once, a known gap from then on."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from services.api.calls import MutationContext
from services.api.errors import RemoteStorageError
from services.api.offset_gaps import LOST_BEFORE_COPY, OffsetGap, is_recorded
from services.api.remote_log_manager import Problem, ProblemKind
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.segments import RemoteLogSegmentMetadata
from services.rlm.copying.segment_copy import RETRIABLE_ERRORS
from services.rlm.partition import Partition
from services.rlm.tier_view.tier import Tier

Range = tuple[int, int]
"""Offsets, both ends inclusive."""


@dataclass
class Losses:
    """The lost ranges of a partition, as a pass has left them.

    Attributes:
        recorded: found first and recorded by this pass.
        unrecorded: RLMM did not take them; the next pass tries again.
        known: recorded before.
    """

    recorded: list[Problem] = field(default_factory=list)
    unrecorded: list[Problem] = field(default_factory=list)
    known: list[Range] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LossRecorder:
    """Records losses for one broker."""

    rlmm: RemoteLogMetadataManager
    broker_id: int

    def record(
        self,
        partition: Partition,
        tier: Tier,
        lost: Sequence[Range],
        leader_epoch: int | None,
        under_way: Sequence[RemoteLogSegmentMetadata],
    ) -> Losses:
        """Record those of the lost ranges (candidates.lost_before_copy) that are not yet.

        Args:
            under_way: copies by others, which may finish yet: what they have is not lost so far.

        Raises:
            RETRIABLE_ERRORS: RLMM cannot be reached; what was recorded before that is.
        """
        losses = Losses()
        gaps = partition.gaps.refresh(tier) if lost else ()
        for first, last in lost:
            if is_recorded(gaps, first, last):
                losses.known.append((first, last))
                continue
            refusal = _copied_yet(under_way, first, last)
            refusal = refusal or self._record(partition, first, last, leader_epoch)
            problems = losses.unrecorded if refusal else losses.recorded
            note = f"not recorded: {refusal}" if refusal else "recorded as a gap"
            problems.append(lost_problem(partition, (first, last), note))
        return losses

    def _record(self, partition: Partition, first: int, last: int, leader_epoch: int | None) -> str:
        """Why RLMM refused it; "": it is recorded."""
        gap = OffsetGap(first, last, LOST_BEFORE_COPY)
        why = MutationContext(reason="lost before its copy", broker_leader_epoch=leader_epoch)
        try:
            self.rlmm.record_gap(partition.topic_id_partition, gap, self.broker_id, why)
        except RETRIABLE_ERRORS:
            raise
        except RemoteStorageError as e:
            return f"{type(e).__name__}: {e}"
        return ""


def _copied_yet(under_way: Sequence[RemoteLogSegmentMetadata], first: int, last: int) -> str:
    for segment in under_way:
        if segment.start_offset <= last and first <= segment.end_offset:
            return (
                f"broker {segment.broker_id} copies offsets {segment.start_offset} to "
                f"{segment.end_offset}"
            )
    return ""


def lost_problem(partition: Partition, lost: Range, note: str = "") -> Problem:
    """What a person is told of a range that is found to be lost; it holds nothing back."""
    first, last = lost
    reason = f"offsets {first} to {last} were deleted by the broker before they were copied"
    return _problem(partition, first, f"{reason}; {note}" if note else reason)


def known_gap_problem(partition: Partition, gap: Range) -> Problem:
    """The same, of one that was recorded before."""
    first, last = gap
    reason = f"known gap: offsets {first} to {last} were deleted by the broker before their copy"
    return _problem(partition, first, reason)


def _problem(partition: Partition, offset: int, reason: str) -> Problem:
    path = "" if partition.local is None else str(partition.local.found.path)
    return Problem(ProblemKind.LOST_BEFORE_COPY, path, reason, offset)
