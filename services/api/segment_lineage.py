"""Whether a remote segment belongs to a partition's history of leader epochs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from services.api.lineage import Lineage
from services.api.partition_state import PartitionReport
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    SegmentLeaderEpoch,
)
from services.api.validation import require


def without_empty_epochs(epochs: Sequence[SegmentLeaderEpoch]) -> tuple[SegmentLeaderEpoch, ...]:
    """The epochs that have records: one that starts where the next does has none.

    Source: RemoteLogManager.buildFilteredLeaderEpochMap.
    """
    kept = [a for a, b in pairwise(epochs) if a.start_offset != b.start_offset]
    return (*kept, *epochs[-1:])


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a segment parts from the lineage.

    Attributes:
        leader_epoch: of the segment; the one by which they are told apart.
        why: the figures, for people.
    """

    leader_epoch: int
    why: str


class SegmentLineage:
    """A partition's lineage up to its log end offset, prepared to judge many segments.

    Attributes:
        first_epoch: the lineage's first epoch that has records.
    """

    def __init__(self, lineage: Lineage, log_end_offset: int) -> None:
        require(len(lineage.entries) > 0, "lineage", "must not be empty")
        self._log_end_offset = log_end_offset
        epochs = without_empty_epochs(lineage.entries)
        self._starts = {epoch.leader_epoch: epoch.start_offset for epoch in epochs}
        self._next = {epoch.leader_epoch: following for epoch, following in pairwise(epochs)}
        self.first_epoch = epochs[0].leader_epoch

    def knows(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Whether the segment has any epoch of the lineage, with records there."""
        return any(epoch.leader_epoch in self._starts for epoch in segment.segment_leader_epochs)

    def contains(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Whether the segment holds what the partition's log holds, or held, at its offsets.

        Epochs before the lineage's first are not looked at: the lineage was cut to the log start,
        and a segment may reach across that.

        Source: RemoteLogManager.isRemoteSegmentWithinLeaderEpochs.
        """
        return self.divergence(segment) is None

    def divergence(self, segment: RemoteLogSegmentMetadata) -> Divergence | None:
        """What `contains` goes by where it says no; None: it says yes."""
        epochs = without_empty_epochs(segment.segment_leader_epochs)
        end = segment.end_offset
        if end >= self._log_end_offset:
            why = f"it ends at {end}, and the log before {self._log_end_offset}"
            return Divergence(epochs[-1].leader_epoch, why)
        epochs = tuple(epoch for epoch in epochs if epoch.leader_epoch >= self.first_epoch)
        if not epochs:
            last = segment.segment_leader_epochs[-1].leader_epoch
            return Divergence(last, f"it is before {self.first_epoch}, the lineage's first")
        return self._at_beginning(epochs[0]) or self._after_beginning(epochs, end)

    def _at_beginning(self, epoch: SegmentLeaderEpoch) -> Divergence | None:
        start = self._starts.get(epoch.leader_epoch)
        if start is None:
            return Divergence(epoch.leader_epoch, "the lineage has no such epoch")
        if epoch.leader_epoch != self.first_epoch and epoch.start_offset < start:
            why = f"in the segment it has offset {epoch.start_offset}, in the lineage it begins at "
            return Divergence(epoch.leader_epoch, f"{why}{start}")
        return None

    def _after_beginning(
        self, epochs: Sequence[SegmentLeaderEpoch], end_offset: int
    ) -> Divergence | None:
        for earlier, later in pairwise(epochs):
            following = self._next.get(earlier.leader_epoch)
            if following != later:
                why = (
                    f"in the segment it follows {earlier.leader_epoch} at {later.start_offset}, in "
                    f"the lineage {_text(following)}"
                )
                return Divergence(later.leader_epoch, why)
        last = epochs[-1].leader_epoch
        following = self._next.get(last)
        if following is not None and end_offset >= following.start_offset:
            why = f"in the segment it reaches {end_offset}, in the lineage {_text(following)} comes"
            return Divergence(last, why)
        return None


def _text(epoch: SegmentLeaderEpoch | None) -> str:
    return "nothing" if epoch is None else f"{epoch.leader_epoch} at {epoch.start_offset}"


def log_end_offset(
    segments: Iterable[RemoteLogSegmentMetadata], lineage: Lineage, report: PartitionReport
) -> int:
    """The leader's log end offset, also where it copied more after its report.

    Under one leader epoch a log only grows. So what has finished, and ends in the epoch of the
    leader that reported, is that leader's, though it was not written yet when it reported. What
    ends in an earlier epoch at or above the reported end was truncated in an unclean election.
    """
    if lineage.latest_epoch != report.leader_epoch:
        return report.log_end_offset
    ends = (
        segment.end_offset + 1
        for segment in segments
        if segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        and segment.segment_leader_epochs[-1].leader_epoch == report.leader_epoch
    )
    return max(report.log_end_offset, max(ends, default=0))
