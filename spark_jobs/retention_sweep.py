"""Apply retention on Spark: delete what the settings of topics no longer keep."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from services.api.retention import DEFAULT_COPY_GRACE_MS
from services.api.topic_config import RetentionOwner
from services.api.validation import require
from services.workflows.deletion import Deleter
from spark_jobs.connections import Services
from spark_jobs.execution import delete_marked
from spark_jobs.launch import run_as_program
from spark_jobs.marking import mark_retention
from spark_jobs.options import SweepOptions, add_options, options_of
from spark_jobs.plan import PLAN_SCHEMA
from spark_jobs.planning import plan_scanned
from spark_jobs.report import SweepReport
from spark_jobs.segments_source import remote_log_segments
from spark_jobs.sweep import Stages, SweepRun, sweep

JOB = "retention_sweep"


@dataclass(frozen=True, slots=True)
class Config:
    """Options of this job.

    Attributes:
        copy_grace_ms: treat a copy as in progress this long after it began.
    """

    options: SweepOptions
    copy_grace_ms: int = DEFAULT_COPY_GRACE_MS

    def __post_init__(self) -> None:
        require(self.copy_grace_ms >= 0, "--copy-grace-ms", "must not be negative")


def parse_args(argv: Sequence[str]) -> Config:
    """Parse a command line.

    Raises:
        InvalidRequestError: a value is out of bounds; names the option.
    """
    parser = argparse.ArgumentParser(prog=JOB, description=__doc__)
    add_options(parser)
    parser.add_argument("--copy-grace-ms", type=int, default=DEFAULT_COPY_GRACE_MS)
    arguments = parser.parse_args(argv)
    return Config(options_of(arguments), arguments.copy_grace_ms)


def retention_plan(segments: DataFrame, services: Services, copy_grace_ms: int) -> DataFrame:
    """Plan a scan: SCAN_SCHEMA, each partition whole in one task, to PLAN_SCHEMA."""
    task = partial(plan_scanned, services=services, copy_grace_ms=copy_grace_ms)
    return segments.mapInArrow(task, PLAN_SCHEMA)


def run(spark: SparkSession, this: SweepRun, config: Config) -> SweepReport:
    """Run one sweep and return its report."""
    services, options = config.options.services, config.options
    deleter = Deleter(retention_owner=RetentionOwner.SWEEP, plan_id=this.plan_id)
    grace_ms = config.copy_grace_ms
    segments = remote_log_segments(spark, services, options.topics)
    stages = Stages(
        plan=segments.transform(retention_plan, services, grace_ms),
        mark=partial(mark_retention, services=services, deleter=deleter, copy_grace_ms=grace_ms),
        delete=partial(
            delete_marked, services=services, deleter=deleter, batch_size=options.batch_size
        ),
    )
    return sweep(spark, stages, options, this)


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a program and return its exit code."""
    return run_as_program(JOB, lambda: parse_args(sys.argv[1:] if argv is None else argv), run)


if __name__ == "__main__":
    sys.exit(main())
