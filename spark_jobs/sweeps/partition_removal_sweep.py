"""Remove deleted partitions in bulk: every segment, then the partition itself."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from services.api.remote_log_metadata_manager import SweepKind
from services.api.retention import REMOVAL_GRACE_MS
from services.api.validation import require
from services.workflows.deletion import Deleter
from spark_jobs.options import SweepOptions, add_options, options_of
from spark_jobs.sweeps.execution import delete_marked, finish_partitions
from spark_jobs.sweeps.marking import mark_removals
from spark_jobs.sweeps.planning import (
    deleted_partitions,
    plan_removals,
    topic_sizes,
    why_removal_stops,
)
from spark_jobs.sweeps.report import SweepReport
from spark_jobs.sweeps.stages import Engine
from spark_jobs.sweeps.sweep import Stages, SweepRun, record, sweep

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
    parser.add_argument("--grace-ms", type=int, default=REMOVAL_GRACE_MS)
    arguments = parser.parse_args(argv)
    return Config(options_of(arguments), arguments.grace_ms)


def run(engine: Engine, this: SweepRun, config: Config) -> SweepReport:
    """Run one sweep and return its report."""
    services, options = config.options.services, config.options
    deleter = Deleter(plan_id=this.plan_id)
    with services.connected_rlmm() as rlmm:
        removals = deleted_partitions(rlmm, options.topics, engine.parallelism)
        engine.require_room(removals.segments)
        stages = Stages(
            inputs=removals.partitions,
            plan_tasks=removals.tasks,
            plan=partial(plan_removals, services=services, grace_ms=config.grace_ms),
            mark=partial(
                mark_removals, services=services, deleter=deleter, grace_ms=config.grace_ms
            ),
            delete=partial(
                delete_marked, services=services, deleter=deleter, batch_size=options.batch_size
            ),
            read_config=lambda topic_id: rlmm.topic_config(topic_id).config,
            why_stops=why_removal_stops,
            finish=partial(finish_partitions, services=services, deleter=deleter),
            uncounted=(
                {} if options.max_topic_percent is None else topic_sizes(rlmm, options.topics)
            ),
        )
        report = sweep(engine, stages, options, this)
        return record(rlmm, SweepKind.REMOVAL, options, this, report)
