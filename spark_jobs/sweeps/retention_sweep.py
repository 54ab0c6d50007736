"""Apply retention in bulk: delete what the settings of topics no longer keep."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from services.api.remote_log_metadata_manager import SweepKind
from services.api.retention import DEFAULT_COPY_GRACE_MS
from services.api.topic_config import RetentionOwner
from services.api.validation import require
from services.workflows.deletion import Deleter
from spark_jobs.options import SweepOptions, add_options, options_of
from spark_jobs.sweeps.execution import delete_marked
from spark_jobs.sweeps.marking import mark_retention
from spark_jobs.sweeps.planning import plan_scans, retention_scope, why_retention_stops
from spark_jobs.sweeps.report import SweepReport
from spark_jobs.sweeps.stages import Engine
from spark_jobs.sweeps.sweep import Stages, SweepRun, record, sweep

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

    @property
    def may_speculate(self) -> bool:
        return self.options.segments_per_s is None


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


def run(engine: Engine, this: SweepRun, config: Config) -> SweepReport:
    """Run one sweep and return its report."""
    services, options = config.options.services, config.options
    deleter = Deleter(retention_owner=RetentionOwner.SWEEP, plan_id=this.plan_id)
    grace_ms = config.copy_grace_ms
    with services.connected_rlmm() as rlmm:
        scope = retention_scope(rlmm, options.topics, engine.parallelism)
        engine.require_room(scope.segments)
        stages = Stages(
            inputs=scope.scans,
            plan_tasks=scope.tasks,
            plan=partial(plan_scans, services=services, copy_grace_ms=grace_ms),
            mark=partial(
                mark_retention, services=services, deleter=deleter, copy_grace_ms=grace_ms
            ),
            delete=partial(
                delete_marked, services=services, deleter=deleter, batch_size=options.batch_size
            ),
            read_config=lambda topic_id: rlmm.topic_config(topic_id).config,
            why_stops=why_retention_stops,
            skipped=scope.skipped,
        )
        report = sweep(engine, stages, options, this)
        return record(rlmm, SweepKind.RETENTION, options, this, report)
