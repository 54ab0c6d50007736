"""Remove deleted partitions on Spark: every segment, then the partition itself."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from services.api.retention import DeletionReason
from services.api.segments import RemoteLogSegmentState
from services.api.validation import require
from services.workflows.deletion import Deleter
from spark_jobs.connections import Services
from spark_jobs.execution import delete_marked, finish_partitions
from spark_jobs.launch import run_as_program
from spark_jobs.marking import mark_removals
from spark_jobs.options import REMOVAL_GRACE_MS, SweepOptions, add_options, options_of
from spark_jobs.plan import PLAN_SCHEMA, SEGMENT
from spark_jobs.planning import plan_listed
from spark_jobs.report import SweepReport
from spark_jobs.segments_source import remote_log_segments
from spark_jobs.sweep import Stages, SweepRun, sweep, written

JOB = "partition_removal_sweep"


@dataclass(frozen=True, slots=True)
class Config:
    """Options of this job.

    Attributes:
        grace_ms: skip partitions that were marked less than this ago, by the database's clock, so
            that copies in progress can end.
    """

    options: SweepOptions
    grace_ms: int = REMOVAL_GRACE_MS

    def __post_init__(self) -> None:
        require(self.grace_ms >= 0, "--grace-ms", "must not be negative")


def parse_args(argv: Sequence[str]) -> Config:
    """Parse a command line.

    Raises:
        InvalidRequestError: a value is out of bounds; names the option.
    """
    parser = argparse.ArgumentParser(prog=JOB, description=__doc__)
    add_options(parser)
    parser.add_argument("--grace-ms", type=int, default=REMOVAL_GRACE_MS)
    arguments = parser.parse_args(argv)
    return Config(options_of(arguments), arguments.grace_ms)


def deleted_partitions(
    spark: SparkSession, services: Services, topics: Sequence[str], grace_ms: int
) -> DataFrame:
    """List the partitions that are being deleted, as PARTITION rows in PLAN_SCHEMA."""
    task = partial(plan_listed, services=services, topics=topics, grace_ms=grace_ms)
    return spark.range(0, 1, 1, 1).mapInArrow(task, PLAN_SCHEMA)


def removal_plan(segments: DataFrame, partitions: DataFrame) -> DataFrame:
    """Add the segments of a scan (SCAN_SCHEMA) to their partitions' rows (PLAN_SCHEMA)."""
    is_resumed = F.col("state") == RemoteLogSegmentState.DELETE_SEGMENT_STARTED.name
    resumed = DeletionReason.DELETION_NOT_FINISHED.name
    removed = DeletionReason.PARTITION_DELETED.name
    due = partitions.where(F.col("skipped").isNull()).select("topic_id", "partition")
    to_delete = (
        segments.join(due, on=["topic_id", "partition"], how="left_semi")
        .withColumn("kind", F.lit(SEGMENT))
        .withColumn("reason", F.when(is_resumed, resumed).otherwise(removed))
        .withColumn("detail", F.lit(""))
    )
    both = partitions.unionByName(to_delete, allowMissingColumns=True)
    return both.select(*PLAN_SCHEMA.names)


def run(spark: SparkSession, this: SweepRun, config: Config) -> SweepReport:
    """Run one sweep and return its report."""
    services, options = config.options.services, config.options
    deleter = Deleter(plan_id=this.plan_id)
    listed = deleted_partitions(spark, services, options.topics, config.grace_ms)
    # Stored: it is used twice, and RLMM's response may change in between.
    partitions = written(spark, this, "partitions", listed, PLAN_SCHEMA)
    segments = remote_log_segments(spark, services, options.topics, only_deleted_partitions=True)
    stages = Stages(
        plan=segments.transform(removal_plan, partitions),
        mark=partial(mark_removals, services=services, deleter=deleter, grace_ms=config.grace_ms),
        delete=partial(
            delete_marked, services=services, deleter=deleter, batch_size=options.batch_size
        ),
        finish=partial(finish_partitions, services=services, deleter=deleter),
    )
    return sweep(spark, stages, options, this)


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a program and return its exit code."""
    return run_as_program(JOB, lambda: parse_args(sys.argv[1:] if argv is None else argv), run)


if __name__ == "__main__":
    sys.exit(main())
