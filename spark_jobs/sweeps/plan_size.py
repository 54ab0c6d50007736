"""Decide how many tasks share the planning of partitions. Pure rules."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.api.partitions import SegmentTotals
from spark_jobs.sweeps.plan import Row
from spark_jobs.sweeps.stages import SEGMENTS_PER_TASK

PARTITIONS_PER_TASK = 1_000
"""A task plans no more, however small they are: each costs it a call to RLMM."""

UNCOUNTED_PARTITIONS_PER_TASK = 16
"""The same if an RLMM of an earlier release does not say how many segments they have."""


@dataclass(frozen=True, slots=True)
class PlanSize:
    """How much there is to plan.

    Attributes:
        segments: of the partitions that RLMM sends totals of.
        uncounted: partitions of which it sends none.
    """

    partitions: int = 0
    segments: int = 0
    uncounted: int = 0

    def __add__(self, other: "PlanSize") -> "PlanSize":
        return PlanSize(
            self.partitions + other.partitions,
            self.segments + other.segments,
            self.uncounted + other.uncounted,
        )

    def tasks(self, parallelism: int) -> int:
        """Return how many tasks plan it, so that none has too much."""
        return max(
            2 * parallelism,
            -(-self.segments // SEGMENTS_PER_TASK),
            -(-self.partitions // PARTITIONS_PER_TASK),
            -(-self.uncounted // UNCOUNTED_PARTITIONS_PER_TASK),
        )


def size_of(totals: SegmentTotals | None) -> PlanSize:
    """Return the size of one partition; totals are None if RLMM sends none."""
    if totals is None:
        return PlanSize(partitions=1, uncounted=1)
    return PlanSize(partitions=1, segments=totals.live_segments)


def dealt(rows: Sequence[Row], tasks: int) -> list[Row]:
    """Order rows, of which the largest are first, so that each task gets large and small ones.

    Tasks get consecutive rows, equally many.
    """
    return [row for task in range(tasks) for row in rows[task::tasks]]
