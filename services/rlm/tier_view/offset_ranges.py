"""Sets of offsets, as the ranges that the tier covers."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise


class OffsetRanges:
    """Ranges of offsets, both ends inclusive, merged where they touch."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._ranges: list[tuple[int, int]] = []
        for first, last in sorted(ranges):
            self.add(first, last)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._ranges)

    @property
    def last(self) -> int:
        """The greatest offset in the set; -1 where it is empty."""
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
        """The ranges that lie between those of the set."""
        for (_, last), (first, _) in pairwise(self._ranges):
            yield last + 1, first - 1

    def last_below(self, offset: int) -> int | None:
        """The greatest offset in the set that is below `offset`."""
        at = bisect_right(self._ranges, offset - 1, key=lambda r: r[0])
        return min(self._ranges[at - 1][1], offset - 1) if at else None
