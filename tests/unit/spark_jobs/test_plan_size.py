"""Test how many tasks share a plan, and its rows."""

import pytest

from services.api.partitions import SegmentTotals
from spark_jobs.sweeps.plan_size import PlanSize, dealt, size_of


@pytest.mark.parametrize(
    ("size", "tasks"),
    [
        (PlanSize(), 4),
        (PlanSize(partitions=3, segments=80_000), 4),
        (PlanSize(partitions=3, segments=80_001), 5),
        (PlanSize(partitions=10_001, segments=10_001), 11),
        (PlanSize(partitions=160, uncounted=160), 10),
    ],
)
def test_no_task_has_too_much(size: PlanSize, tasks: int) -> None:
    assert size.tasks(parallelism=2) == tasks


def test_partitions_without_totals_count_by_their_number() -> None:
    counted = size_of(SegmentTotals(live_segments=7))
    assert counted + size_of(None) == PlanSize(partitions=2, segments=7, uncounted=1)


def test_each_task_gets_large_and_small_rows() -> None:
    rows = [{"segments": size} for size in (9, 8, 7, 2, 1, 0)]
    found = [row["segments"] for row in dealt(rows, 3)]
    assert [sum(found[start : start + 2]) for start in (0, 2, 4)] == [11, 9, 7]
    assert sorted(found) == sorted(row["segments"] for row in rows)
