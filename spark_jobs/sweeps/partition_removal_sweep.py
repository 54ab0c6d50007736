"""Remove deleted partitions in bulk: every segment, then the partition itself."""

from functools import partial

from services.api.operations import SweepKind
from services.workflows.deletion import Deleter
from spark_jobs.options import SweepConfig
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


def run(engine: Engine, this: SweepRun, config: SweepConfig) -> SweepReport:
    """Run one sweep and return its report."""
    services, options = config.options.services, config.options
    deleter, grace_ms = Deleter(plan_id=this.plan_id), config.grace_ms
    with services.connected_rlmm() as rlmm:
        removals = deleted_partitions(rlmm, options.topics, engine.parallelism)
        engine.require_room(removals.segments)
        stages = Stages(
            inputs=removals.partitions,
            plan_tasks=removals.tasks,
            plan=partial(plan_removals, services=services, grace_ms=grace_ms),
            mark=partial(mark_removals, services=services, deleter=deleter, grace_ms=grace_ms),
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
