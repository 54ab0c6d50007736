"""Run the stages of a sweep: plan, then mark and delete wave by wave, then report.

The plan is frozen: it is stored once and never computed again, so that a repeated task and a human
reader see the same plan. Each stage is stored before the next one begins; a task that ran twice
counts once.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa

from services.api.errors import RemoteStorageError
from services.api.operations import RunCounts, RunKind, RunOutcome, ToolRun
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.common.failpoints import failpoint
from spark_jobs.options import SweepOptions
from spark_jobs.sweeps.budget import Permission, Size, WhyStops, over_budget, topics_over_budget
from spark_jobs.sweeps.marking import now_ms
from spark_jobs.sweeps.plan import (
    DELETED_SCHEMA,
    FINISHED_SCHEMA,
    MARKED,
    MARKED_SCHEMA,
    PARTITION,
    PLAN_SCHEMA,
    REFUSED,
    SEGMENT,
    rows_in,
)
from spark_jobs.sweeps.report import (
    ROW_COLUMNS,
    SEGMENTS_SUFFIX,
    Document,
    Header,
    Outcome,
    Outcomes,
    SweepReport,
    left_outcome,
)
from spark_jobs.sweeps.stages import EVERYTHING, SEGMENTS_PER_TASK, Engine, Selection, Stored, Task
from spark_jobs.sweeps.sweep_error import SweepError
from spark_jobs.sweeps.waves import HEAD_COLUMNS, Head, Key, Wave, head_of, skipped_head, waves_of

Say = Callable[[str], None]
PacedTask = Callable[..., Iterator[pa.RecordBatch]]
"""A Task with the argument `segments_per_s`, of the task; None for no limit."""

DOCUMENT_NAME = "report.json"
_PLAN_COLUMNS = tuple(name for name in ROW_COLUMNS if name not in ("outcome", "error"))


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages in which sweeps differ.

    Attributes:
        inputs, plan_tasks: the rows of the first stage, and how many tasks share them.
        plan: the inputs to PLAN_SCHEMA.
        mark: PLAN_SCHEMA, a partition's rows together and in order, to MARKED_SCHEMA.
        delete: MARKED_SCHEMA, marked segments, to DELETED_SCHEMA.
        finish: MARKED_SCHEMA, marked partitions, to FINISHED_SCHEMA; None for no such stage.
        skipped: partitions that are not planned at all, by key, and why.
        uncounted: the sizes of partitions of these topics whose segments the plan does not count.
        why_stops: reads a topic's settings as they are now.
    """

    inputs: pa.Table
    plan_tasks: int
    plan: Task
    mark: PacedTask
    delete: PacedTask
    why_stops: WhyStops
    finish: Task | None = None
    skipped: Mapping[Key, str] = field(default_factory=dict)
    uncounted: Mapping[Key, Size] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SweepRun:
    """One run: its job, its plan's id, its directory here and the callback for its phases."""

    job: str
    plan_id: str
    directory: Path
    say: Say

    @property
    def document(self) -> Path:
        return self.directory / DOCUMENT_NAME

    @property
    def segments(self) -> Path:
        """Return the file that has the document's segments if they are many."""
        return self.directory / f"{DOCUMENT_NAME}{SEGMENTS_SUFFIX}"


def sweep(engine: Engine, stages: Stages, options: SweepOptions, run: SweepRun) -> SweepReport:
    """Run the stages that the options and the plan allow, and write `run.document`.

    A sweep that fails in a wave writes it too, with the waves before.

    Raises:
        SweepError: a stage failed, or its rows cannot be read as its tasks wrote them.
    """
    started_at_ms = now_ms()
    run.say("planning")
    plan = engine.scatter("plan", stages.plan, stages.inputs, PLAN_SCHEMA, stages.plan_tasks)
    require_all(engine, plan, engine.count(plan))
    failpoint("sweep.planned")
    heads = _heads(engine, plan, stages)
    refusal = over_budget(heads, options)
    header = Header(run.job, run.plan_id, engine.name, options.apply, started_at_ms, refusal)
    with Document(run.document, header, heads, _segments_name(options, run)) as document:
        if header.is_executed:
            try:
                _execute(engine, stages, options, run, plan, heads, document)
            except (SweepError, RemoteStorageError) as e:
                document.finish(now_ms, failure=str(e))
                raise
        else:
            for wave in waves_of(heads, lambda _: None, options.wave_segments):
                document.add(_left(engine, plan, wave, left_outcome(header), None))
        run.say("reporting")
        return document.finish(now_ms)


def record(
    rlmm: RemoteLogMetadataManager,
    kind: RunKind,
    options: SweepOptions,
    run: SweepRun,
    report: SweepReport,
) -> SweepReport:
    """Record in RLMM that a sweep that deletes has ended, and return its report.

    The sweep is done: an error of RLMM is named only.
    """
    if options.apply:
        counts, started_at_ms = report.totals.counts, report.header.started_at_ms
        try:
            done = ToolRun(
                kind,
                run.plan_id,
                RunOutcome[report.outcome],
                options.topics,
                duration_ms=max(now_ms() - started_at_ms, 0),
            )
            totals = RunCounts(
                segments=counts["planned_segments"],
                done_segments=counts["deleted_segments"],
                done_bytes=counts["deleted_bytes"],
                failed_segments=counts["failed_segments"],
            )
            rlmm.report_tool_run(done, [totals])
        except RemoteStorageError as e:
            run.say(f"this run is not recorded: {e}")
    return report


def _execute(
    engine: Engine,
    stages: Stages,
    options: SweepOptions,
    run: SweepRun,
    plan: Stored,
    heads: tuple[Head, ...],
    document: Document,
) -> None:
    too_much = topics_over_budget(heads, options.max_topic_percent, stages.uncounted)
    permission = Permission(stages.why_stops, too_much)
    waves = waves_of(heads, permission.refusal_of, _wave_segments(engine, options))
    for number, wave in enumerate(waves):
        if wave.refusal is not None:
            document.add(_left(engine, plan, wave, REFUSED, wave.refusal))
        else:
            _execute_wave(engine, stages, options, run, plan, number, wave, document)
        permission.next_wave()


def _execute_wave(
    engine: Engine,
    stages: Stages,
    options: SweepOptions,
    run: SweepRun,
    plan: Stored,
    number: int,
    wave: Wave,
    document: Document,
) -> None:
    tasks = _tasks(engine, wave, options)
    pace = share_of(options.segments_per_s, engine, tasks)
    run.say("marking")
    marked = engine.by_partition(
        f"marked-{number}",
        partial(stages.mark, segments_per_s=pace),
        plan,
        Selection(wave=wave),
        MARKED_SCHEMA,
        tasks,
    )
    rows = _read_all(engine, marked, ROW_COLUMNS)
    failpoint("sweep.marked")

    run.say("deleting")
    segments = Selection(SEGMENT, MARKED)
    deleted = engine.evenly(
        f"deleted-{number}",
        partial(stages.delete, segments_per_s=pace),
        marked,
        segments,
        DELETED_SCHEMA,
        tasks,
    )
    of_segments = {
        row["segment_id"]: _outcome(row)
        for row in rows_in(_read_all(engine, deleted, DELETED_SCHEMA.names).to_batches())
    }
    failpoint("sweep.deleted")
    of_partitions: dict[tuple[str, int], Outcome] = {}
    if stages.finish is not None and wave.is_end:
        heads = Selection(PARTITION, MARKED)
        finished = engine.evenly(
            f"finished-{number}", stages.finish, marked, heads, FINISHED_SCHEMA, tasks
        )
        table = _read_all(engine, finished, FINISHED_SCHEMA.names)
        for row in rows_in(table.to_batches()):
            of_partitions[row["topic_id"], row["partition"]] = _outcome(row)
    document.add(rows, Outcomes(of_segments, of_partitions))


def _segments_name(options: SweepOptions, run: SweepRun) -> str | None:
    """Return the name of the segments' file; None if it goes with the run's own directory."""
    if options.report is not None:
        return f"{options.report.name}{SEGMENTS_SUFFIX}"
    return None if options.local_work_dir is None else run.segments.name


def _wave_segments(engine: Engine, options: SweepOptions) -> int:
    """Return how large a wave may be: at a rate, what tasks that all run at once can have."""
    if options.segments_per_s is None:
        return options.wave_segments
    return min(options.wave_segments, engine.parallelism * SEGMENTS_PER_TASK)


def _tasks(engine: Engine, wave: Wave, options: SweepOptions) -> int:
    """Return how many tasks share a wave; a rate is shared by tasks that all run at once."""
    if options.segments_per_s is not None:
        return engine.parallelism
    return max(-(-wave.segments // SEGMENTS_PER_TASK), 2 * engine.parallelism)


def share_of(rate: float | None, engine: Engine, tasks: int) -> float | None:
    """Return a task's share of a rate of all tasks together; None if there is no rate.

    A second copy of a task, which Spark starts if speculation is on, has a share of its own.
    """
    return None if rate is None else rate / (tasks * engine.attempts_at_once)


def _outcome(row: dict[str, str]) -> Outcome:
    return row["outcome"], row["error"]


def _heads(engine: Engine, plan: Stored, stages: Stages) -> tuple[Head, ...]:
    batches = engine.read(plan, Selection(PARTITION), HEAD_COLUMNS)
    is_removed = stages.finish is not None
    planned = [head_of(row, is_removed=is_removed) for row in rows_in(batches)]
    known = {head.key for head in planned}
    skipped = (skipped_head(k, why) for k, why in stages.skipped.items() if k not in known)
    return tuple(sorted((*planned, *skipped), key=lambda head: head.key))


def _left(engine: Engine, plan: Stored, wave: Wave, outcome: str, error: str | None) -> pa.Table:
    """Return the rows of a wave of which nothing was done, with an outcome."""
    batches = engine.read(plan, Selection(wave=wave), _PLAN_COLUMNS)
    rows = pa.Table.from_batches(_projected(batches), _schema(PLAN_SCHEMA, _PLAN_COLUMNS))
    size = rows.num_rows
    return rows.append_column("outcome", pa.array([outcome] * size, pa.string())).append_column(
        "error", pa.array([error] * size, pa.string())
    )


def _projected(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    schema = _schema(PLAN_SCHEMA, _PLAN_COLUMNS)
    return (batch.select(_PLAN_COLUMNS).cast(schema) for batch in batches)


def _schema(of: pa.Schema, names: tuple[str, ...]) -> pa.Schema:
    return pa.schema([of.field(name) for name in names])


def _read_all(engine: Engine, stored: Stored, columns: tuple[str, ...] | list[str]) -> pa.Table:
    batches = [batch.select(columns) for batch in engine.read(stored, EVERYTHING, columns)]
    require_all(engine, stored, sum(batch.num_rows for batch in batches))
    if not batches:
        return pa.table({name: pa.array([], MARKED_SCHEMA.field(name).type) for name in columns})
    return pa.Table.from_batches(batches)


def require_all(engine: Engine, stored: Stored, rows: int) -> None:
    """Raise SweepError unless so many rows of a stage are all that its tasks wrote."""
    if rows != stored.rows:
        raise SweepError(
            f"tasks wrote {stored.rows} rows to {stored.path}, and {rows} can be read: the "
            "executors do not share this directory; name one that all of them see with --work-dir, "
            "such as s3a://BUCKET/PREFIX"
        )
