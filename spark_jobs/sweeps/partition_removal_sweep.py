"""Remove deleted partitions in bulk: every segment, then the partition itself.

Deletes the objects of kept segments that are due, too.
"""

from functools import partial

from services.api.operations import RunKind
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.topic_config import RetentionOwner
from services.workflows.deletion import Deleter, DeletionOutcome
from services.workflows.kept_segments import delete_kept_segments
from spark_jobs.options import SweepConfig, SweepOptions
from spark_jobs.sweeps.execution import delete_marked, finish_partitions
from spark_jobs.sweeps.marking import mark_removals, now_ms
from spark_jobs.sweeps.planning import deleted_partitions, plan_removals, topic_sizes
from spark_jobs.sweeps.report import SweepReport
from spark_jobs.sweeps.stages import Engine
from spark_jobs.sweeps.sweep import Stages, SweepRun, record, sweep
from spark_jobs.sweeps.sweep_error import SweepError

JOB = "sweep removal"


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
            why_stops=lambda _: None,
            finish=partial(finish_partitions, services=services, deleter=deleter),
            uncounted=(
                {} if options.max_topic_percent is None else topic_sizes(rlmm, options.topics)
            ),
        )
        report = record(rlmm, RunKind.REMOVAL, options, this, sweep(engine, stages, options, this))
        if report.header.is_executed:
            _delete_kept(rlmm, this, options)
        return report


def _delete_kept(rlmm: RemoteLogMetadataManager, this: SweepRun, options: SweepOptions) -> None:
    """Delete the objects that brokers' deletions have left, if they are due.

    Raises:
        SweepError: some could not be deleted.
    """
    deleted, failed = 0, list[DeletionOutcome]()
    with options.services.connected_rsm() as rsm:
        for topic in options.topics or [""]:
            for outcome in delete_kept_segments(
                rlmm, rsm, RetentionOwner.SWEEP, now_ms(), topic, this.plan_id
            ):
                deleted += outcome.error is None
                failed += [outcome] if outcome.error is not None else []
    if deleted:
        this.say(f"deleted the objects of {deleted} kept segments that were due")
    if failed:
        raise SweepError(
            f"the removal is done, but the objects of {len(failed)} kept segments are left, such "
            f"as those of {failed[0].segment.remote_log_segment_id}: {failed[0].error}; run the "
            "sweep again"
        )
