"""Define a partition's lineage, and decide whether a segment belongs to it."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from services.api.errors import InvalidRequestError
from services.api.segments import RemoteLogSegmentMetadata, SegmentLeaderEpoch
from services.api.validation import INT64_MAX, require

_MOST_DIGITS = len(str(INT64_MAX))


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """A leader epoch and the offset after its last one."""

    leader_epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Lineage:
    """The history of a partition's leader epochs, ascending in epoch and in start offset.

    Kafka: LeaderEpochFileCache. An epoch ends at the start offset of the next one.
    """

    entries: tuple[SegmentLeaderEpoch, ...] = ()

    def __post_init__(self) -> None:
        for earlier, later in pairwise(self.entries):
            ascending = (
                earlier.leader_epoch < later.leader_epoch
                and earlier.start_offset <= later.start_offset
            )
            if not ascending:
                raise InvalidRequestError(
                    f"leader_epochs: {later.leader_epoch} at {later.start_offset} cannot follow "
                    f"{earlier.leader_epoch} at {earlier.start_offset}"
                )

    @property
    def latest_epoch(self) -> int | None:
        return self.entries[-1].leader_epoch if self.entries else None

    def epoch_for_offset(self, offset: int) -> int | None:
        """Return the leader epoch of `offset`; None if it is before the first epoch."""
        at = bisect_right(self.entries, offset, key=lambda entry: entry.start_offset)
        return self.entries[at - 1].leader_epoch if at else None

    def between(self, base_offset: int, next_offset: int) -> tuple[SegmentLeaderEpoch, ...]:
        """Return the epochs with records in [base_offset, next_offset), clamped to base_offset.

        Source: RemoteLogManager.copyLogSegment, segmentLeaderEpochs.
        """
        if not self.entries:
            return ()
        found: list[SegmentLeaderEpoch] = []
        ends = [entry.start_offset for entry in self.entries[1:]] + [next_offset]
        for entry, end in zip(self.entries, ends, strict=True):
            start = max(entry.start_offset, base_offset)
            if start < min(end, next_offset):
                found.append(SegmentLeaderEpoch(entry.leader_epoch, start))
        return tuple(found)

    def before(self, offset: int) -> "Lineage":
        """Return the history of all offsets below `offset`, from its beginning.

        It equals the LEADER_EPOCH index of a segment that ends before `offset`.
        """
        return Lineage(tuple(e for e in self.entries if e.start_offset < offset))

    def from_offset(self, offset: int) -> "Lineage":
        """Return the history from `offset` on; the epoch of `offset` begins there.

        Source: LeaderEpochFileCache.truncateFromStart.
        """
        at = bisect_right(self.entries, offset, key=lambda entry: entry.start_offset)
        if at == 0:
            return self
        first = SegmentLeaderEpoch(self.entries[at - 1].leader_epoch, offset)
        return Lineage((first, *self.entries[at:]))

    def end_offset_for(self, epoch: int, log_end_offset: int) -> int:
        """Return the offset after the last one of `epoch`.

        Source: LeaderEpochFileCache.endOffsetFor, for an epoch of the lineage or between two of its
        epochs.
        """
        later = (e.start_offset for e in self.entries if e.leader_epoch > epoch)
        return next(later, log_end_offset)

    def end_of(self, epoch: int, log_end_offset: int) -> EpochEnd | None:
        """Return the end of the greatest epoch that is not above `epoch`.

        If all are above it, return `epoch` itself, which ends where the first begins; None if all
        are below it.

        Source: LeaderEpochFileCache.endOffsetFor.
        """
        if self.latest_epoch is None or epoch > self.latest_epoch:
            return None
        at = bisect_right(self.entries, epoch, key=lambda entry: entry.leader_epoch)
        greatest = self.entries[at - 1].leader_epoch if at else epoch
        return EpochEnd(greatest, self.end_offset_for(epoch, log_end_offset))

    def merged_with_report(self, reported: "Lineage") -> "Lineage":
        """Merge a broker's reported history, which may lack the beginning, into this one.

        Entries below the broker's first stay; an entry of equal epoch keeps the smaller start; from
        the first divergence on, the broker's entries replace the stored ones.
        """
        if not reported.entries:
            return self
        first = reported.entries[0]
        kept = [e for e in self.entries if e.leader_epoch < first.leader_epoch]
        known = {e.leader_epoch: e.start_offset for e in self.entries}
        start = min(first.start_offset, known.get(first.leader_epoch, first.start_offset))
        kept = [e for e in kept if e.start_offset < start]
        joined = [*kept, SegmentLeaderEpoch(first.leader_epoch, start), *reported.entries[1:]]
        return Lineage(tuple(joined))


def checkpoint_text(entries: Sequence[SegmentLeaderEpoch]) -> str:
    """Return Kafka's leader-epoch-checkpoint file: version 0, the count, a line per epoch."""
    lines = [f"{entry.leader_epoch} {entry.start_offset}" for entry in entries]
    return "\n".join(["0", str(len(lines)), *lines, ""])


def parse_checkpoint(text: str) -> Lineage:
    """Read a leader-epoch-checkpoint file, or the LEADER_EPOCH index of a segment.

    Raises:
        InvalidRequestError: if the version is not 0, the count does not match, a line is not two
            numbers, or epochs do not ascend.
    """
    version, _, rest = text.partition("\n")
    if version.strip() != "0":
        raise InvalidRequestError(f"leader epochs: version must be 0, is {version[:20]!r}")
    count, *lines = [line for line in rest.split("\n") if line.strip()] or [""]
    if count != str(len(lines)):
        raise InvalidRequestError(f"leader epochs: {count[:20]!r} announced, {len(lines)} there")
    entries = []
    for line in lines:
        words = line.split(" ")
        if len(words) != 2 or not all(map(_is_number, words)):
            raise InvalidRequestError(f"leader epochs: not 'EPOCH OFFSET': {line[:60]!r}")
        entries.append(SegmentLeaderEpoch(int(words[0]), int(words[1])))
    return Lineage(tuple(entries))


def _is_number(word: str) -> bool:
    return word.isdecimal() and len(word) <= _MOST_DIGITS


def without_empty_epochs(epochs: Sequence[SegmentLeaderEpoch]) -> tuple[SegmentLeaderEpoch, ...]:
    """Return the epochs that have records; an epoch with the start of the next one has none.

    Source: RemoteLogManager.buildFilteredLeaderEpochMap.
    """
    kept = [a for a, b in pairwise(epochs) if a.start_offset != b.start_offset]
    return (*kept, *epochs[-1:])


class EpochRanges:
    """The offsets of each leader epoch of a lineage, prepared for many segments."""

    def __init__(self, lineage: Lineage) -> None:
        epochs = without_empty_epochs(lineage.entries)
        ends = [epoch.start_offset - 1 for epoch in epochs[1:]] + [INT64_MAX]
        self._ranges = {
            epoch.leader_epoch: (epoch.start_offset, end)
            for epoch, end in zip(epochs, ends, strict=True)
        }

    def of(self, segment: RemoteLogSegmentMetadata) -> Iterator[tuple[int, int]]:
        """Yield the segment's offsets that belong to the lineage, both inclusive."""
        for epoch, first, last in segment.epoch_ranges():
            start, end = self._ranges.get(epoch, (0, -1))
            first, last = max(first, start, segment.start_offset), min(last, end)
            if first <= last:
                yield first, last


@dataclass(frozen=True, slots=True)
class Divergence:
    """The leader epoch at which a segment leaves the lineage, and the reason.

    Attributes:
        leader_epoch: of the segment; the first that differs from the lineage.
        why: the figures, for people.
    """

    leader_epoch: int
    why: str


class SegmentLineage:
    """The lineage of a partition up to its log end offset, prepared to check many segments.

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
        """Return whether the segment has records in an epoch of the lineage."""
        return any(epoch.leader_epoch in self._starts for epoch in segment.segment_leader_epochs)

    def contains(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Return whether the segment has the records of the partition's log at its offsets.

        Epochs before the lineage's first are ignored: the lineage begins at the log start, and a
        segment may begin before it.

        Source: RemoteLogManager.isRemoteSegmentWithinLeaderEpochs.
        """
        return self.divergence(segment) is None

    def divergence(self, segment: RemoteLogSegmentMetadata) -> Divergence | None:
        """Return why `contains` is False; None if it is True."""
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
