"""Apply retention in bulk: delete what the settings of topics no longer keep."""

from functools import partial

from services.api.operations import RunKind
from services.api.topic_config import RetentionOwner
from services.workflows.deletion import Deleter
from spark_jobs.options import SweepConfig
from spark_jobs.sweeps.execution import delete_marked
from spark_jobs.sweeps.marking import mark_retention
from spark_jobs.sweeps.planning import plan_scans, retention_scope, why_skipped
from spark_jobs.sweeps.report import SweepReport
from spark_jobs.sweeps.stages import Engine
from spark_jobs.sweeps.sweep import Stages, SweepRun, record, sweep

JOB = "sweep retention"


def run(engine: Engine, this: SweepRun, config: SweepConfig) -> SweepReport:
    """Run one sweep and return its report."""
    services, options = config.options.services, config.options
    deleter = Deleter(retention_owner=RetentionOwner.SWEEP, plan_id=this.plan_id)
    grace_ms = config.grace_ms
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
            why_stops=lambda topic_id: why_skipped(rlmm.topic_config(topic_id).config),
            skipped=scope.skipped,
        )
        report = sweep(engine, stages, options, this)
        return record(rlmm, RunKind.RETENTION, options, this, report)
