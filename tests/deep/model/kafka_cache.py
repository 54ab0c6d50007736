"""The segments of one partition as Kafka's cache keeps them, with the differences that we declare.

Kafka: RemoteLogMetadataCache and RemoteLogLeaderEpochState. Plain dictionaries and plain searches:
it must be right at a glance, not fast.
"""

from dataclasses import dataclass, field
from functools import reduce
from uuid import UUID

from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


def offsets_by_epoch(segment: RemoteLogSegmentMetadata) -> dict[int, tuple[int, int]]:
    """The first and the last offset (inclusive) of each leader epoch in the segment.

    An epoch ends one before the next one starts, the last one with the segment; one that starts
    where the next one does has no offsets, and ends one before its start.
    """
    ranges, end = {}, segment.end_offset
    for epoch in reversed(segment.segment_leader_epochs):
        ranges[epoch.leader_epoch] = (epoch.start_offset, end)
        end = epoch.start_offset - 1
    return ranges


@dataclass
class LeaderEpochState:
    """Which segments answer for the offsets of one leader epoch.

    Attributes:
        offset_to_id: the referenced segments, all finished, by their first offset in the epoch.
        unreferenced: those that are being copied or deleted, and those that were displaced.
        highest_offset: the last one that ever finished (inclusive); never falls.
    """

    offset_to_id: dict[int, UUID] = field(default_factory=dict)
    unreferenced: set[UUID] = field(default_factory=set)
    highest_offset: int | None = None

    @property
    def listed(self) -> set[UUID]:
        return self.unreferenced.union(self.offset_to_id.values())

    def copy_finished(self, segment_id: UUID, start: int, end: int) -> None:
        reaches_the_highest = self.highest_offset is None or self.highest_offset <= end
        for other in sorted(self.offset_to_id):
            if other >= start and reaches_the_highest:
                self.unreferenced.add(self.offset_to_id.pop(other))
        replaced = self.offset_to_id.get(start)
        if replaced is not None:
            # Declared difference: Kafka would forget this one, and no list of the epoch name it.
            self.unreferenced.add(replaced)
        self.offset_to_id[start] = segment_id
        self.unreferenced.discard(segment_id)
        self.highest_offset = end if self.highest_offset is None else max(self.highest_offset, end)

    def deletion_started(self, segment_id: UUID, start: int) -> None:
        if self.offset_to_id.get(start) == segment_id:
            del self.offset_to_id[start]
        self.unreferenced.add(segment_id)

    def floor(self, offset: int) -> UUID | None:
        starts = [start for start in self.offset_to_id if start <= offset]
        return self.offset_to_id[max(starts)] if starts else None


@dataclass
class KafkaCache:
    """The segments that are not DELETE_SEGMENT_FINISHED.

    Attributes:
        segments: in the order in which they last moved, so that the finished ones are in the order
            in which they finished.
    """

    segments: dict[UUID, RemoteLogSegmentMetadata] = field(default_factory=dict)
    epochs: dict[int, LeaderEpochState] = field(default_factory=dict)

    def copy_started(self, segment: RemoteLogSegmentMetadata) -> None:
        for epoch in offsets_by_epoch(segment):
            self.epochs.setdefault(epoch, LeaderEpochState()).unreferenced.add(self._put(segment))

    def copy_finished(self, segment: RemoteLogSegmentMetadata) -> None:
        for epoch, (start, end) in offsets_by_epoch(segment).items():
            self.epochs[epoch].copy_finished(self._put(segment), start, end)

    def deletion_started(self, segment: RemoteLogSegmentMetadata) -> None:
        for epoch, (start, _) in offsets_by_epoch(segment).items():
            self.epochs[epoch].deletion_started(self._put(segment), start)

    def deletion_finished(self, segment: RemoteLogSegmentMetadata) -> None:
        del self.segments[segment.remote_log_segment_id.id]
        for epoch in offsets_by_epoch(segment):
            self.epochs[epoch].unreferenced.discard(segment.remote_log_segment_id.id)

    def _put(self, segment: RemoteLogSegmentMetadata) -> UUID:
        segment_id = segment.remote_log_segment_id.id
        self.segments.pop(segment_id, None)
        self.segments[segment_id] = segment
        return segment_id

    def segment_for_offset(self, epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        """Kafka's choice where it holds the offset. Otherwise (a declared difference: Kafka has no
        answer) one of the finished segments that do."""
        if epoch not in self.epochs:
            return None
        floor = self.epochs[epoch].floor(offset)
        if floor is not None and _holds(self.segments[floor], epoch, offset):
            return self.segments[floor]
        return self.another_for_offset(epoch, offset)

    def another_for_offset(self, epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        holders = [
            segment
            for segment in self.segments.values()
            if segment.state is FINISHED and _holds(segment, epoch, offset)
        ]
        return reduce(_preferred, holders) if holders else None

    def next_with_txn_index(self, epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        """The one that ends at or after the offset and starts first. Kafka's search goes from
        segment to segment and stops at a gap: a declared difference."""
        highest = self.highest_offset(epoch)
        found = [
            each
            for each in self.segments.values()
            if each.state is FINISHED
            and not each.txn_idx_empty
            and epoch in offsets_by_epoch(each)
            and each.end_offset >= offset
            and highest is not None
            and each.start_offset <= highest
        ]
        return min(found, key=_by_start, default=None)

    def listed(self, epoch: int | None) -> list[RemoteLogSegmentMetadata]:
        """Ascending by start offset, then by id; None: of all epochs."""
        if epoch is None:
            found = list(self.segments.values())
        else:
            state = self.epochs.get(epoch, LeaderEpochState())
            found = [self.segments[segment_id] for segment_id in state.listed]
        return sorted(found, key=_by_start)

    def size_in_bytes(self, epoch: int) -> int:
        """A size that is not known (-1) counts nothing."""
        return sum(max(0, each.segment_size_in_bytes) for each in self.listed(epoch))

    def highest_offset(self, epoch: int) -> int | None:
        return self.epochs.get(epoch, LeaderEpochState()).highest_offset


def _by_start(segment: RemoteLogSegmentMetadata) -> tuple[int, UUID]:
    return segment.start_offset, segment.remote_log_segment_id.id


def _holds(segment: RemoteLogSegmentMetadata, epoch: int, offset: int) -> bool:
    start, end = offsets_by_epoch(segment).get(epoch, (0, -1))
    return start <= offset <= end


def _preferred(
    earlier: RemoteLogSegmentMetadata, later: RemoteLogSegmentMetadata
) -> RemoteLogSegmentMetadata:
    """Of two in the order of finishing: the higher broker leader epoch where both have one."""
    ours, theirs = later.broker_leader_epoch, earlier.broker_leader_epoch
    if ours is None or theirs is None or ours >= theirs:
        return later
    return earlier
