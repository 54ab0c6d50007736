"""Sum up what the tier has of a partition."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

from services.api.lineage import Lineage
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.superseded import is_tail

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED


class OffsetRanges:
    """The set of offsets as ranges, both ends inclusive; adjacent ranges are merged."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._ranges: list[tuple[int, int]] = []
        for first, last in sorted(ranges):
            self.add(first, last)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._ranges)

    @property
    def last(self) -> int:
        """Return the greatest offset in the set; -1 if the set is empty."""
        return self._ranges[-1][1] if self._ranges else -1

    def add(self, first: int, last: int) -> None:
        """Add a range that begins no earlier than those before it."""
        if first > last:
            return
        if self._ranges and first <= self._ranges[-1][1] + 1:
            start, end = self._ranges[-1]
            self._ranges[-1] = start, max(end, last)
        else:
            self._ranges.append((first, last))

    def covers(self, first: int, last: int) -> bool:
        at = bisect_right(self._ranges, first, key=lambda r: r[0])
        return at > 0 and last <= self._ranges[at - 1][1]

    def gaps(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges between those of the set."""
        for (_, last), (first, _) in pairwise(self._ranges):
            yield last + 1, first - 1

    def last_below(self, offset: int) -> int | None:
        """Return the greatest offset in the set below `offset`; None if there is none."""
        at = bisect_right(self._ranges, offset - 1, key=lambda r: r[0])
        return min(self._ranges[at - 1][1], offset - 1) if at else None


@dataclass(slots=True)
class Tier:
    """The state of a partition in the tier.

    It has no lists of finished segments or of those being deleted: there may be hundreds of
    thousands of either.

    Attributes:
        known: RLMM has the partition; None if RLMM was not read yet.
        is_exact: all of it was listed at `revision`, not some of it later.
        before_tails: the revision after which this process added only tails, behind a segment;
            None if it added none. By time they are not due before that segment.
        log_start_offset: the tier's, from RLMM: lower offsets are deleted or being deleted.
        segments, size_bytes: of finished segments.
        start_offset: the lowest offset, not below log_start_offset, that a look-up in a finished
            segment finds; None if there is none.
        newest: the finished segment with the latest epoch; of several, the one that ends last.
        unfinished: running and dangling copies of all brokers, and those whose clean-up has not
            finished.
        deleting_segments, deleting_bytes: of copied segments in DELETE_SEGMENT_STARTED.
        ranges: of each leader epoch, the offsets in finished segments.
        ranges_without_tails: the same of those that are no tails.
        overlapping: changes with the finished segments that share offsets of a leader epoch with
            one that begins before; 0 if there are none, and nothing can be superseded.
        removed_before_offset: the latest log start inside a copied segment: the records below were
            deleted by DeleteRecords before the copy.
        has_finished_below_log_start: a deletion raised the log start and was then interrupted.
    """

    known: bool | None = None
    revision: int | None = None
    is_exact: bool = True
    before_tails: int | None = None
    log_start_offset: int = 0
    segments: int = 0
    size_bytes: int = 0
    start_offset: int | None = None
    newest: RemoteLogSegmentMetadata | None = None
    unfinished: list[RemoteLogSegmentMetadata] = field(default_factory=list)
    deleting_segments: int = 0
    deleting_bytes: int = 0
    ranges: dict[int, OffsetRanges] = field(default_factory=lambda: defaultdict(OffsetRanges))
    ranges_without_tails: dict[int, OffsetRanges] = field(
        default_factory=lambda: defaultdict(OffsetRanges)
    )
    overlapping: int = 0
    removed_before_offset: int = 0
    has_finished_below_log_start: bool = False

    @property
    def end_offset(self) -> int:
        """Return the offset after the newest segment; the log start if there is none."""
        end = self.newest.end_offset + 1 if self.newest else 0
        return max(end, self.log_start_offset)

    @property
    def deleted_before_offset(self) -> int:
        """Return the offset below which missing offsets were deleted, not lost.

        Retention or DeleteRecords deleted them.
        """
        return max(self.removed_before_offset, self.log_start_offset)

    def epoch_of(self, offset: int) -> int | None:
        """Return the leader epoch of `offset` in the newest segment's lineage, if segments show it.

        They do for offsets of the newest segment, and for those of other segments in the newest
        one's first epoch: an epoch has one leader, so its records are in one lineage. None: only
        the LEADER_EPOCH index of the newest segment has the answer.
        """
        if self.newest is None or offset > self.newest.end_offset:
            return None
        first = self.newest.segment_leader_epochs[0]
        if offset >= max(first.start_offset, self.newest.start_offset):
            return Lineage(tuple(self.newest.segment_leader_epochs)).epoch_for_offset(offset)
        is_shown = self.ranges[first.leader_epoch].covers(offset, offset)
        return first.leader_epoch if is_shown else None

    def covered(self, lineage: Lineage) -> OffsetRanges:
        """Return the offsets that are copied in `lineage`, without those of overruled leaders.

        Epochs before the first of the lineage count up to its beginning: brokers forget the epochs
        of records they no longer have.
        """
        return OffsetRanges(_clipped(self.ranges, lineage))

    def copied(self, lineage: Lineage) -> OffsetRanges:
        """Return the offsets of `covered` without those that only tails have.

        A local segment is copied, and may be deleted, only if all of its offsets are in here.
        """
        return OffsetRanges(_clipped(self.ranges_without_tails, lineage))

    def behind_all(self, segment: RemoteLogSegmentMetadata, revision: int) -> "Tier | None":
        """Return the tier with one more finished segment; None if it does not begin behind all."""
        ends = [of_epoch.last for of_epoch in self.ranges.values()]
        if segment.start_offset <= max(ends, default=-1):
            return None
        before = self.revision if self.before_tails is None else self.before_tails
        id = segment.remote_log_segment_id
        tier = replace(
            self,
            revision=revision,
            before_tails=before if self.segments and is_tail(segment) else None,
            unfinished=[s for s in self.unfinished if s.remote_log_segment_id != id],
            ranges=_copied(self.ranges),
            ranges_without_tails=_copied(self.ranges_without_tails),
        )
        tier.add(segment)
        return tier

    def add(self, segment: RemoteLogSegmentMetadata) -> None:
        """Add the next segment, in the order of start offsets."""
        size_bytes = max(segment.segment_size_in_bytes, 0)
        if segment.state is _DELETING and segment.custom_metadata is not None:
            self.deleting_segments += 1
            self.deleting_bytes += size_bytes
            return
        if segment.state is not _FINISHED:
            self.unfinished.append(segment)
            return
        self.segments += 1
        self.size_bytes += size_bytes
        first_epoch_start = segment.epoch_ranges()[0][1]
        if segment.end_offset < self.log_start_offset:
            self.has_finished_below_log_start = True
        elif self.start_offset is None:
            # A segment's records below its first epoch were deleted while it was still local.
            lowest = max(segment.start_offset, first_epoch_start)
            self.start_offset = max(lowest, self.log_start_offset)
        if first_epoch_start > segment.start_offset:
            self.removed_before_offset = max(self.removed_before_offset, first_epoch_start)
        if self.newest is None or _age(segment) > _age(self.newest):
            self.newest = segment
        for epoch, first, last in segment.epoch_ranges():
            first = max(first, segment.start_offset)
            if first <= min(last, self.ranges[epoch].last):
                self.overlapping = hash((self.overlapping, segment.remote_log_segment_id)) or 1
            self.ranges[epoch].add(first, last)
            if not is_tail(segment):
                self.ranges_without_tails[epoch].add(first, last)


def _copied(ranges: dict[int, OffsetRanges]) -> dict[int, OffsetRanges]:
    made = {epoch: OffsetRanges(of_epoch) for epoch, of_epoch in ranges.items()}
    return defaultdict(OffsetRanges, made)


def _age(segment: RemoteLogSegmentMetadata) -> tuple[int, int]:
    return segment.segment_leader_epochs[-1].leader_epoch, segment.end_offset


def _clipped(ranges: dict[int, OffsetRanges], lineage: Lineage) -> Iterator[tuple[int, int]]:
    if not lineage.entries:
        for of_epoch in ranges.values():
            yield from of_epoch
        return
    starts = {entry.leader_epoch: entry.start_offset for entry in lineage.entries}
    first_epoch = lineage.entries[0].leader_epoch
    for epoch, of_epoch in ranges.items():
        if epoch >= first_epoch and epoch not in starts:
            continue
        # The broker clamps its first entry to its own log start, so that bounds nothing.
        lowest = starts[epoch] if epoch > first_epoch else 0
        no_end = of_epoch.last + 1
        end = lineage.end_offset_for(epoch, no_end)
        for first, last in of_epoch:
            yield max(first, lowest), min(last, end - 1)
