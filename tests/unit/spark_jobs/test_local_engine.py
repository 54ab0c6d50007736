"""Test the stages of a sweep in one process, and what the driver does with their rows."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Event
from uuid import UUID

import pyarrow as pa
import pytest

from services.api.errors import InvalidRequestError, RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.retention import Deletion, DeletionReason
from services.common.retry import StoppedError
from spark_jobs.connections import Services
from spark_jobs.options import SweepOptions
from spark_jobs.sweeps.local_engine import LocalEngine
from spark_jobs.sweeps.plan import (
    PLAN_SCHEMA,
    SEGMENT,
    PartitionPlan,
    Row,
    batches_of,
    rows_in,
    rows_of,
)
from spark_jobs.sweeps.stages import EVERYTHING, Selection, Stored, TooManySegmentsError
from spark_jobs.sweeps.sweep import Stages, SweepRun, sweep
from spark_jobs.sweeps.sweep_error import EXIT_FAILED, SweepError
from spark_jobs.sweeps.waves import Pace, Wave
from tests.harness.tier import segment

TOPIC_ID = UUID(int=7)
SIZES = pa.schema([("partition", pa.int32()), ("segments", pa.int32())])
PLACE = ("partition", "position")
LONG_S = 20.0
"""How long a task waits if nothing ends its wait."""


def plan_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Plan so many segments of each partition: SIZES to PLAN_SCHEMA."""
    for row in rows_in(batches):
        tp = TopicIdPartition(TOPIC_ID, "t", row["partition"])
        due = tuple(
            Deletion(segment(tp, number), DeletionReason.RETENTION_TIME, "old")
            for number in range(row["segments"])
        )
        plan = PartitionPlan(tp, 1, 1, deletions=due, tier_segments=len(due))
        yield from batches_of(rows_of(plan), PLAN_SCHEMA)


def sizes(*segments: int) -> pa.Table:
    rows = [{"partition": number, "segments": each} for number, each in enumerate(segments)]
    return pa.Table.from_pylist(rows, SIZES)


def planned(engine: LocalEngine, *segments: int) -> Stored:
    return engine.scatter("plan", plan_rows, sizes(*segments), PLAN_SCHEMA, 2)


def unchanged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def read(engine: LocalEngine, stored: Stored, which: Selection = EVERYTHING) -> list[Row]:
    return list(rows_in(engine.read(stored, which, ("kind", *PLACE))))


def test_a_task_gets_whole_partitions_in_the_plans_order(tmp_path: Path) -> None:
    engine = LocalEngine(tmp_path, threads=3)
    plan = planned(engine, 3, 0, 5, 1, 2)
    seen: list[list[tuple[int, int | None]]] = []

    def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kept = list(batches)
        seen.append([(row["partition"], row["position"]) for row in rows_in(kept)])
        yield from kept

    stored = engine.by_partition("marked", look, plan, EVERYTHING, PLAN_SCHEMA, 3)
    assert stored.rows == plan.rows == engine.count(stored) == 16
    assert len(seen) > 1
    partitions = [{partition for partition, _ in task} for task in seen]
    assert sum(map(len, partitions)) == 5
    for task in seen:
        assert task == sorted(
            task, key=lambda place: (place[0], -1 if place[1] is None else place[1])
        )


def test_tasks_share_rows_evenly(tmp_path: Path) -> None:
    engine = LocalEngine(tmp_path, threads=3)
    plan = planned(engine, 9, 1)
    counts = []

    def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kept = list(batches)
        counts.append(sum(batch.num_rows for batch in kept))
        yield from kept

    engine.evenly("deleted", look, plan, Selection(SEGMENT), PLAN_SCHEMA, 5)
    assert counts == [2] * 5


@pytest.mark.parametrize(
    ("first", "last", "positions", "found"),
    [(1, 2, None, [(1, 0), (1, 1), (2, 0)]), (0, 0, range(1, 3), [(0, 1), (0, 2)])],
)
def test_a_wave_selects_partitions_or_a_part_of_one(
    tmp_path: Path, first: int, last: int, positions: range | None, found: list[tuple[int, int]]
) -> None:
    engine = LocalEngine(tmp_path)
    plan = planned(engine, 4, 2, 1, 3)
    keys = [("t", str(TOPIC_ID), number) for number in (first, last)]
    wave = Wave(keys[0], keys[1], len(found), positions)
    rows = read(engine, plan, Selection(wave=wave))
    segments = sorted((r["partition"], r["position"]) for r in rows if r["kind"] == SEGMENT)
    assert segments == found
    heads = {row["partition"] for row in rows if row["kind"] != SEGMENT}
    assert heads == set(range(first, last + 1))


def test_a_task_that_a_service_failed_runs_again_and_counts_once(tmp_path: Path) -> None:
    engine, attempts = LocalEngine(tmp_path), []

    def fails_twice(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from plan_rows(batches)
        attempts.append(1)
        if len(attempts) < 3:
            raise RetriableRemoteStorageError("away")

    stored = engine.scatter("plan", fails_twice, sizes(2), PLAN_SCHEMA, 1)
    assert stored.rows == engine.count(stored) == 3


def test_a_task_that_fails_for_good_ends_the_stage(tmp_path: Path) -> None:
    engine, attempts = LocalEngine(tmp_path), []

    def fails(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        attempts.append(1)
        raise RetriableRemoteStorageError("away")
        yield from batches

    with pytest.raises(RetriableRemoteStorageError, match="away"):
        engine.scatter("plan", fails, sizes(2), PLAN_SCHEMA, 1)
    assert len(attempts) == 4


def wait_for_a_rate() -> None:
    pace = Pace(1 / LONG_S)
    for _ in range(2):
        pace.wait_for(1)


class Away:
    def call(self) -> None:
        raise RetriableRemoteStorageError("away")


def wait_for_a_service() -> None:
    Services("rlmm:1", "rsm:1", retry_for_s=LONG_S).retried(Away()).call()


@pytest.mark.parametrize("wait", [wait_for_a_rate, wait_for_a_service])
def test_a_task_that_waits_ends_when_the_stage_stops(
    tmp_path: Path, wait: Callable[[], None]
) -> None:
    began, ends = Event(), []

    def fails_while_the_other_waits(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if next(iter(rows_in(batches)))["partition"] == 0:
            assert began.wait(60)
            raise InvalidRequestError("wrong")
        began.set()
        try:
            wait()
        except Exception as e:
            ends.append(type(e))
            raise
        yield from ()

    with pytest.raises(InvalidRequestError):
        LocalEngine(tmp_path, threads=2).scatter(
            "plan", fails_while_the_other_waits, sizes(1, 1), PLAN_SCHEMA, 2
        )
    assert ends == [StoppedError]


def test_a_tier_that_is_too_large_is_noticed_by_its_totals(tmp_path: Path) -> None:
    LocalEngine(tmp_path).require_room(1_000_000_000)
    engine = LocalEngine(tmp_path, max_segments=4)
    engine.require_room(4)
    with pytest.raises(TooManySegmentsError):
        engine.require_room(5)


class SeparateDisks(LocalEngine):
    """Executors of which the driver sees only the first one's files."""

    def scatter(
        self, name: str, task: object, rows: pa.Table, schema: pa.Schema, tasks: int
    ) -> Stored:
        stored = super().scatter(name, plan_rows, rows, schema, tasks)
        for part in sorted(Path(stored.path).iterdir())[1:]:
            part.unlink()
        return stored


def test_rows_that_the_driver_cannot_read_end_the_sweep_before_anything_is_marked(
    tmp_path: Path,
) -> None:
    def nothing_is_marked(_: object) -> object:
        raise AssertionError("marked")

    stages = Stages(
        inputs=sizes(2, 3),
        plan_tasks=2,
        plan=plan_rows,
        mark=nothing_is_marked,  # type: ignore[arg-type]  # is never called
        delete=nothing_is_marked,  # type: ignore[arg-type]  # is never called
        why_stops=lambda _: None,
    )
    run = SweepRun("sweep retention", "plan", tmp_path, lambda _: None)
    options = SweepOptions("rsm:1", "rlmm:1", apply=True)
    with pytest.raises(
        SweepError, match=r"wrote 7 rows .* and 3 can be read.*--work-dir"
    ) as raised:
        sweep(SeparateDisks(tmp_path), stages, options, run)
    assert raised.value.exit_code == EXIT_FAILED
    assert not run.document.exists()
