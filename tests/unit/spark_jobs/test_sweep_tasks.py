"""Test how a sweep splits its plan into waves and tasks, and a rate into shares."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spark_jobs.options import SweepOptions
from spark_jobs.sweeps.local_engine import LocalEngine
from spark_jobs.sweeps.plan import (
    DELETED,
    DELETED_SCHEMA,
    MARKED,
    MARKED_SCHEMA,
    SEGMENT,
    batches_of,
    rows_in,
)
from spark_jobs.sweeps.planning import dealt, tasks_for
from spark_jobs.sweeps.stages import Selection, Stored, Task
from spark_jobs.sweeps.sweep import Stages, SweepRun, sweep
from tests.unit.spark_jobs.test_local_engine import plan_rows, sizes

PARALLELISM = 2


class Counting(LocalEngine):
    """The engine of this process; notes how many tasks share a stage.

    Attributes:
        copies: that may run of a task at once, as with speculation.
    """

    copies = 1

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, threads=PARALLELISM)
        self.tasks: dict[str, int] = {}

    @property
    def attempts_at_once(self) -> int:
        return self.copies

    def by_partition(
        self, name: str, task: Task, source: Stored, which: Selection, schema: pa.Schema, tasks: int
    ) -> Stored:
        self.tasks[name] = tasks
        return super().by_partition(name, task, source, which, schema, tasks)

    def evenly(
        self, name: str, task: Task, source: Stored, which: Selection, schema: pa.Schema, tasks: int
    ) -> Stored:
        self.tasks[name] = tasks
        return super().evenly(name, task, source, which, schema, tasks)


def swept(engine: Counting, directory: Path, segments_per_s: float | None) -> list[float | None]:
    """Sweep nine segments of three partitions; return the shares of its stages."""
    shares: list[float | None] = []

    def mark(
        batches: Iterable[pa.RecordBatch], segments_per_s: float | None
    ) -> Iterator[pa.RecordBatch]:
        shares.append(segments_per_s)
        rows = ({**row, "outcome": MARKED} for row in rows_in(batches))
        yield from batches_of(rows, MARKED_SCHEMA)

    def delete(
        batches: Iterable[pa.RecordBatch], segments_per_s: float | None
    ) -> Iterator[pa.RecordBatch]:
        shares.append(segments_per_s)
        rows = (
            {"segment_id": row["segment_id"], "outcome": DELETED}
            for row in rows_in(batches)
            if row["kind"] == SEGMENT
        )
        yield from batches_of(rows, DELETED_SCHEMA)

    stages = Stages(
        inputs=sizes(4, 3, 2),
        plan_tasks=1,
        plan=plan_rows,
        mark=mark,
        delete=delete,
        why_stops=lambda _: None,
    )
    options = SweepOptions(
        "rsm:1", "rlmm:1", apply=True, wave_segments=500, segments_per_s=segments_per_s
    )
    run = SweepRun("sweep retention", "plan", directory, lambda _: None)
    report = sweep(engine, stages, options, run)
    assert report.totals.counts["deleted_segments"] == 9
    return shares


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_jobs.sweeps.sweep.SEGMENTS_PER_TASK", 2)


def test_without_a_rate_a_task_has_a_bounded_part_of_the_wave(tmp_path: Path) -> None:
    engine = Counting(tmp_path)
    assert set(swept(engine, tmp_path, None)) == {None}
    assert engine.tasks == {"marked-0": 5, "deleted-0": 5}


@pytest.mark.parametrize("copies", [1, 2])
def test_at_a_rate_all_tasks_of_a_wave_run_at_once_and_each_has_a_bounded_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copies: int
) -> None:
    monkeypatch.setattr(Counting, "copies", copies)
    engine = Counting(tmp_path)
    shares = swept(engine, tmp_path, 100.0)
    # Waves of at most 2 x 2 segments.
    assert engine.tasks == {
        f"{stage}-{wave}": PARALLELISM for wave in range(3) for stage in ("marked", "deleted")
    }
    assert {share and share * PARALLELISM * copies for share in shares} == {100.0}


@pytest.mark.parametrize(
    ("sizes", "tasks"), [([], 4), ([80_000, 0], 4), ([80_001, 0], 5), ([1] * 10_001, 11)]
)
def test_no_task_plans_too_much(sizes: list[int], tasks: int) -> None:
    assert tasks_for(sizes, parallelism=2) == tasks


def test_each_task_gets_large_and_small_rows() -> None:
    rows = [{"segments": size} for size in (9, 8, 7, 2, 1, 0)]
    found = [row["segments"] for row in dealt(rows, 3)]
    assert [sum(found[start : start + 2]) for start in (0, 2, 4)] == [11, 9, 7]
