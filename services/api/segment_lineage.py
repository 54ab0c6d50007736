"""Whether a remote segment belongs to a partition's history of leader epochs."""

from collections.abc import Iterable, Sequence
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
        if segment.end_offset >= self._log_end_offset:
            return False
        epochs = [
            epoch
            for epoch in without_empty_epochs(segment.segment_leader_epochs)
            if epoch.leader_epoch >= self.first_epoch
        ]
        if not epochs or epochs[0].leader_epoch not in self._starts:
            return False
        return (
            self._begins_within(epochs[0])
            and all(self._next.get(a.leader_epoch) == b for a, b in pairwise(epochs))
            and self._ends_within(epochs[-1].leader_epoch, segment.end_offset)
        )

    def _begins_within(self, epoch: SegmentLeaderEpoch) -> bool:
        is_first = epoch.leader_epoch == self.first_epoch
        return is_first or epoch.start_offset >= self._starts[epoch.leader_epoch]

    def _ends_within(self, last_epoch: int, end_offset: int) -> bool:
        following = self._next.get(last_epoch)
        return following is None or end_offset < following.start_offset


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
