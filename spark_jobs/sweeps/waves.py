"""Split a plan into waves of at most so many segments, and pace the tasks of a wave."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields

from services.common.retry import wait_s
from spark_jobs.sweeps.plan import Row

Key = tuple[str, str, int]
"""Topic, topic id and number of a partition: the order of a plan."""


@dataclass(frozen=True, slots=True)
class Head:
    """The row of kind PARTITION of a plan.

    Attributes:
        planned_segments, planned_bytes: what the plan deletes.
        new_segments, new_bytes: of these, what no earlier run has marked.
        tier_segments, tier_bytes: what the tier has of the partition.
        is_removed: the partition itself goes, too.
    """

    key: Key
    skipped: str | None
    notes: tuple[str, ...]
    log_start_offset: int | None
    planned_segments: int
    planned_bytes: int
    new_segments: int
    new_bytes: int
    tier_segments: int
    tier_bytes: int
    is_removed: bool = False

    @property
    def has_work(self) -> bool:
        return self.planned_segments > 0 or (self.is_removed and self.skipped is None)


_OWN = tuple(each.name for each in fields(Head) if each.name not in ("key", "is_removed"))
HEAD_COLUMNS = ("topic", "topic_id", "partition", *_OWN)


def head_of(row: Row, *, is_removed: bool) -> Head:
    """Build the head of a row with HEAD_COLUMNS."""
    columns = dict(row)
    key = (columns.pop("topic"), columns.pop("topic_id"), columns.pop("partition"))
    notes = tuple(columns.pop("notes"))
    return Head(key=key, notes=notes, is_removed=is_removed, **columns)


def skipped_head(key: Key, why: str) -> Head:
    """Build the head of a partition of which nothing is planned."""
    return Head(key, why, (), None, 0, 0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Wave:
    """Consecutive partitions of a plan, or a part of one partition.

    Attributes:
        first, last: the keys of the first and the last partition.
        segments: how many the plan deletes.
        positions: of the segments, if it is a part of the partition; None for whole partitions.
        is_end: the partitions end here; False if another part follows.
        refusal: why nothing of it is deleted; None if it is.
    """

    first: Key
    last: Key
    segments: int
    positions: range | None = None
    is_end: bool = True
    refusal: str | None = None

    @property
    def topic_ids(self) -> tuple[str, str]:
        return self.first[1], self.last[1]


def waves_of(
    heads: Iterable[Head],
    refusal_of: Callable[[Head], str | None],
    max_segments: int,
) -> Iterator[Wave]:
    """Yield the waves of a plan, in order of its partitions.

    Args:
        heads: in order of their keys; those without work begin no wave.
        refusal_of: returns why nothing of a partition may be deleted; called as late as possible,
            when the wave before is done.
    """
    gathered: list[Head] = []
    segments, refusal = 0, None
    for head in heads:
        if not head.has_work:
            continue
        if gathered and segments + head.planned_segments > max_segments:
            yield _whole(gathered, segments, refusal)
            gathered, segments = [], 0
        why = refusal_of(head)
        if gathered and why != refusal:
            yield _whole(gathered, segments, refusal)
            gathered, segments = [], 0
            why = refusal_of(head)
        refusal = why
        if head.planned_segments > max_segments:
            yield from _parts(head, refusal_of, max_segments)
            continue
        gathered.append(head)
        segments += head.planned_segments
    if gathered:
        yield _whole(gathered, segments, refusal)


def _whole(heads: list[Head], segments: int, refusal: str | None) -> Wave:
    return Wave(heads[0].key, heads[-1].key, segments, refusal=refusal)


def _parts(
    head: Head, refusal_of: Callable[[Head], str | None], max_segments: int
) -> Iterator[Wave]:
    for start in range(0, head.planned_segments, max_segments):
        positions = range(start, min(start + max_segments, head.planned_segments))
        yield Wave(
            head.key,
            head.key,
            len(positions),
            positions,
            is_end=positions.stop == head.planned_segments,
            refusal=refusal_of(head),
        )


class Pace:
    """Hold a task to its share of --segments-per-s, in whichever portions. Not thread-safe."""

    def __init__(
        self,
        per_s: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = wait_s,
    ) -> None:
        """Args: per_s: None for no limit."""
        self._per_s = per_s
        self._clock = clock
        self._sleep = sleep
        self._free_at_s = clock()

    def wait_for(self, segments: int) -> None:
        """Wait until the segments before these have had their time."""
        if self._per_s is None:
            return
        now_s = self._clock()
        self._sleep(max(0.0, self._free_at_s - now_s))
        self._free_at_s = max(self._free_at_s, now_s) + segments / self._per_s
