"""The segments of one partition as Kafka's cache keeps them, with Sediment's declared differences.

Kafka: RemoteLogMetadataCache and RemoteLogLeaderEpochState. Plain mappings and plain searches: it
must be right at a glance, not fast. Nothing here changes; each event gives the next cache.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import ClassVar, Self
from uuid import UUID

from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState

STARTED, FINISHED, DELETE_STARTED, DELETE_FINISHED = RemoteLogSegmentState


def offsets_by_epoch(segment: RemoteLogSegmentMetadata) -> dict[int, tuple[int, int]]:
    """Return the first and the last offset (inclusive) of each leader epoch in the segment.

    An epoch ends one before the next one starts, the last one with the segment; one that starts
    with the next one has no offsets, and ends one before its start.
    """
    ranges, end = {}, segment.end_offset
    for epoch in reversed(segment.segment_leader_epochs):
        ranges[epoch.leader_epoch] = (epoch.start_offset, end)
        end = epoch.start_offset - 1
    return ranges


@dataclass(frozen=True, slots=True)
class LeaderEpochState:
    """The finished segments that answer for the offsets of one leader epoch.

    Attributes:
        offset_to_id: (first offset in the epoch, segment), ascending.
        highest_offset: the last offset that ever finished (inclusive); never falls.
    """

    offset_to_id: tuple[tuple[int, UUID], ...] = ()
    highest_offset: int | None = None

    def copy_finished(self, segment_id: UUID, start: int, end: int) -> Self:
        is_highest = self.highest_offset is None or self.highest_offset <= end
        kept = [
            (other, other_id)
            for other, other_id in self.offset_to_id
            if other < start or (other > start and not is_highest)
        ]
        highest = end if self.highest_offset is None else max(self.highest_offset, end)
        offset_to_id = tuple(sorted([*kept, (start, segment_id)]))
        return replace(self, offset_to_id=offset_to_id, highest_offset=highest)

    def deletion_started(self, segment_id: UUID, start: int) -> Self:
        kept = tuple(entry for entry in self.offset_to_id if entry != (start, segment_id))
        return replace(self, offset_to_id=kept)

    def floor(self, offset: int) -> UUID | None:
        ids = [segment_id for start, segment_id in self.offset_to_id if start <= offset]
        return ids[-1] if ids else None


@dataclass(frozen=True)
class KafkaCache:
    """Attributes:
    segments: in the order in which they last moved, so that the finished ones are in the order in
        which they finished; also those in DELETE_SEGMENT_FINISHED, which Kafka forgets.
    epochs: those in which a segment has finished.
    """

    epoch_class: ClassVar[type[LeaderEpochState]] = LeaderEpochState

    segments: Mapping[UUID, RemoteLogSegmentMetadata] = field(default_factory=dict)
    epochs: Mapping[int, LeaderEpochState] = field(default_factory=dict)

    def taken(self, segment: RemoteLogSegmentMetadata) -> Self:
        """Return the cache after the segment moved to its state."""
        segment_id = segment.remote_log_segment_id.id
        segments, epochs = dict(self.segments), dict(self.epochs)
        segments.pop(segment_id, None)
        segments[segment_id] = segment
        if segment.state is FINISHED:
            for epoch, (start, end) in offsets_by_epoch(segment).items():
                epochs[epoch] = self._epoch(epoch).copy_finished(segment_id, start, end)
        elif segment.state is DELETE_STARTED:
            for epoch, (start, _) in offsets_by_epoch(segment).items():
                if epoch in epochs:
                    epochs[epoch] = epochs[epoch].deletion_started(segment_id, start)
        return replace(self, segments=segments, epochs=epochs)

    def _epoch(self, epoch: int) -> LeaderEpochState:
        return self.epochs.get(epoch) or self.epoch_class()

    @property
    def live(self) -> list[RemoteLogSegmentMetadata]:
        """All but the segments in DELETE_SEGMENT_FINISHED."""
        return [each for each in self.segments.values() if each.state is not DELETE_FINISHED]

    def segment_for_offset(self, epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        """Return Kafka's choice if it holds the offset. Otherwise (a declared difference: Kafka
        finds nothing) return one of the finished segments that do."""
        floor = self._epoch(epoch).floor(offset)
        if floor is not None and _holds(self.segments[floor], epoch, offset):
            return self.segments[floor]
        return self.another_for_offset(epoch, offset)

    def another_for_offset(self, epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        holders = [
            segment
            for segment in self.segments.values()
            if segment.state is FINISHED and _holds(segment, epoch, offset)
        ]
        return reduce(self.preferred, holders) if holders else None

    def preferred(
        self, earlier: RemoteLogSegmentMetadata, later: RemoteLogSegmentMetadata
    ) -> RemoteLogSegmentMetadata:
        """Return the one with the higher broker leader epoch; if one has none, the later finish."""
        ours, theirs = later.broker_leader_epoch, earlier.broker_leader_epoch
        return later if ours is None or theirs is None or ours >= theirs else earlier

    def next_with_txn_index(self, epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        """Return the first segment that ends at or after the offset. Kafka searches from segment
        to segment and stops at a gap: a declared difference."""
        highest = self.highest_offset(epoch)
        found = [
            each
            for each in self.segments.values()
            if each.state is FINISHED
            and not each.txn_idx_empty
            and _has_records(each, epoch)
            and each.end_offset >= offset
            and highest is not None
            and each.start_offset <= highest
        ]
        return min(found, key=_by_start, default=None)

    def listed(
        self,
        epoch: int | None = None,
        states: Collection[RemoteLogSegmentState] = (),
        min_offset: int = 0,
    ) -> list[RemoteLogSegmentMetadata]:
        """Return the live segments, ascending by start offset, then by id.

        Declared difference: Kafka drops a segment from the list of the epoch if another one
        finishes at the same start.
        """
        found = [
            each
            for each in self.live
            if (epoch is None or _has(each, epoch))
            and (not states or each.state in states)
            and each.end_offset >= min_offset
        ]
        return sorted(found, key=_by_start)

    def size_in_bytes(self, epoch: int) -> int:
        """Return the sum of the known sizes; -1 is an unknown one."""
        return sum(max(0, each.segment_size_in_bytes) for each in self.listed(epoch))

    def highest_offset(self, epoch: int) -> int | None:
        return self._epoch(epoch).highest_offset


def _by_start(segment: RemoteLogSegmentMetadata) -> tuple[int, UUID]:
    return segment.start_offset, segment.remote_log_segment_id.id


def _has(segment: RemoteLogSegmentMetadata, epoch: int) -> bool:
    return any(each.leader_epoch == epoch for each in segment.segment_leader_epochs)


def _has_records(segment: RemoteLogSegmentMetadata, epoch: int) -> bool:
    start, end = offsets_by_epoch(segment).get(epoch, (0, -1))
    return start <= end


def _holds(segment: RemoteLogSegmentMetadata, epoch: int, offset: int) -> bool:
    start, end = offsets_by_epoch(segment).get(epoch, (0, -1))
    return start <= offset <= end
