"""Run the stages of a sweep: plan, mark, delete, report.

The plan is frozen: it is stored once and never computed again, so that a repeated task and a human
reader see the same plan. Spark's committer stores the result of each stage before the next one
begins; a task that ran twice counts once.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from services.api.retention import DeletionReason
from services.common.failpoints import failpoint
from spark_jobs.marking import now_ms
from spark_jobs.options import SweepOptions
from spark_jobs.plan import (
    DELETED_SCHEMA,
    FINISHED_SCHEMA,
    MARKED,
    MARKED_SCHEMA,
    PARTITION,
    PLAN_SCHEMA,
    PLANNED,
    REFUSED,
    SEGMENT,
)
from spark_jobs.report import (
    Header,
    SweepReport,
    partition_outcomes,
    segment_outcomes,
    size_bytes,
    write_document,
)

Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
Say = Callable[[str], None]
DOCUMENT_NAME = "report.json"


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages in which sweeps differ.

    Attributes:
        plan: yields PLAN_SCHEMA.
        mark: PLAN_SCHEMA, a partition's rows together and in order, to MARKED_SCHEMA.
        delete: MARKED_SCHEMA, marked segments, to DELETED_SCHEMA.
        finish: MARKED_SCHEMA, marked partitions, to FINISHED_SCHEMA; None for no such stage.
    """

    plan: DataFrame
    mark: Task
    delete: Task
    finish: Task | None = None


@dataclass(frozen=True, slots=True)
class SweepRun:
    """One run: its job, its plan's id, its directory and the callback for its phases."""

    job: str
    plan_id: str
    directory: Path
    say: Say

    @property
    def document(self) -> Path:
        return self.directory / DOCUMENT_NAME


@dataclass(frozen=True, slots=True)
class _Done:
    """The outcome of the plan: its rows (MARKED_SCHEMA) and the results of later stages."""

    rows: DataFrame
    deleted: DataFrame | None = None
    finished: DataFrame | None = None


def sweep(spark: SparkSession, stages: Stages, options: SweepOptions, run: SweepRun) -> SweepReport:
    """Run the stages that the options and the plan allow, and write `run.document`."""
    started_at_ms = now_ms()
    run.say("planning")
    plan = written(spark, run, "plan", stages.plan, PLAN_SCHEMA)
    failpoint("sweep.planned")
    refusal = _over_budget(plan, options)
    is_executed = options.apply and refusal is None
    done = _executed(spark, stages, plan, run) if is_executed else _left(plan, options)
    run.say("reporting")
    header = Header(run.job, run.plan_id, options.apply, started_at_ms, refusal)
    segments = segment_outcomes(done.rows, done.deleted)
    partitions = partition_outcomes(done.rows, segments, done.finished, is_executed)
    return write_document(run.document, header, partitions, segments, now_ms)


def _executed(spark: SparkSession, stages: Stages, plan: DataFrame, run: SweepRun) -> _Done:
    tasks = 2 * spark.sparkContext.defaultParallelism
    run.say("marking")
    by_partition = plan.repartition(tasks, "topic_id", "partition").sortWithinPartitions(
        "topic_id", "partition", "kind", "position"
    )
    marks = by_partition.mapInArrow(stages.mark, MARKED_SCHEMA)
    rows = written(spark, run, "marked", marks, MARKED_SCHEMA)
    failpoint("sweep.marked")

    run.say("deleting")
    marked = rows.where(F.col("outcome") == MARKED)
    # By ranges: tasks of equal size, with few partitions in each of RLMM's batches.
    evenly = marked.where(F.col("kind") == SEGMENT).repartitionByRange(
        tasks, "topic_id", "partition", "start_offset", "segment_id"
    )
    gone = evenly.mapInArrow(stages.delete, DELETED_SCHEMA)
    deleted = written(spark, run, "deleted", gone, DELETED_SCHEMA)
    failpoint("sweep.deleted")
    if stages.finish is None:
        return _Done(rows, deleted)

    heads = marked.where(F.col("kind") == PARTITION).repartition(tasks)
    ends = heads.mapInArrow(stages.finish, FINISHED_SCHEMA)
    return _Done(rows, deleted, written(spark, run, "finished", ends, FINISHED_SCHEMA))


def _left(plan: DataFrame, options: SweepOptions) -> _Done:
    """Return the outcome of a dry run, or of a plan that is refused as a whole."""
    outcome = F.lit(REFUSED if options.apply else PLANNED)
    rows = plan.withColumn("outcome", outcome).withColumn("error", F.lit(None).cast("string"))
    return _Done(rows)


def _over_budget(plan: DataFrame, options: SweepOptions) -> str | None:
    """Explain why a plan exceeds the limits; None if it does not."""
    new = plan.where(
        (F.col("kind") == SEGMENT) & (F.col("reason") != DeletionReason.DELETION_NOT_FINISHED.name)
    )
    figures = new.agg(
        F.count("*").alias("segments"), F.coalesce(F.sum(size_bytes()), F.lit(0)).alias("bytes")
    ).first()
    assert figures is not None
    if figures["segments"] > options.max_segments:
        return (
            f"the plan names {figures['segments']} new segments, more than "
            f"--max-segments {options.max_segments}; nothing was marked. Check the plan with a dry "
            "run, then raise the limit"
        )
    if options.max_bytes is not None and figures["bytes"] > options.max_bytes:
        return (
            f"the plan names {figures['bytes']} bytes of new segments, more than "
            f"--max-bytes {options.max_bytes}; nothing was marked. Check the plan with a dry run, "
            "then raise the limit"
        )
    return None


def written(
    spark: SparkSession, run: SweepRun, name: str, frame: DataFrame, schema: StructType
) -> DataFrame:
    """Store a frame and return it as stored, so that reading it again gives the same rows."""
    # Not a URI: Hadoop would take a %20 as three characters of the name.
    path = f"file:{run.directory / name}"
    frame.write.parquet(path)
    return spark.read.schema(schema).parquet(path)
