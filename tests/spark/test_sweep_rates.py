"""Rates over all tasks, how many tasks there are, and a service that has too much to do."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from services.api.errors import ThrottledError
from services.api.partitions import EventQuery
from services.api.remote_log_metadata_manager import all_events
from services.local.stack import own_environment
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from spark_jobs.options import SweepConfig, SweepOptions
from spark_jobs.sweeps import retention_sweep
from spark_jobs.sweeps.local_engine import LocalEngine
from spark_jobs.sweeps.plan import PLAN_SCHEMA
from spark_jobs.sweeps.spark_engine import SparkEngine
from spark_jobs.sweeps.stages import EVERYTHING, Stored
from spark_jobs.sweeps.sweep import SweepRun
from tests.harness.served import served_manager
from tests.harness.tier import Tier, now_ms
from tests.harness.wrapper import Wrapper
from tests.spark.commands import TIMEOUT_S
from tests.spark.jobs import Jobs
from tests.spark.records_reads import ServedTier
from tests.spark.tiers import due_partitions
from tests.unit.spark_jobs.test_local_engine import plan_rows, sizes, unchanged

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_500)]
RATE = 4.0
TASKS = 2
"""At once, by either engine: each may begin with a portion of its own."""


@pytest.mark.parametrize("jobs", ["local", "spark"], indirect=True)
def test_all_tasks_together_keep_to_the_rate(jobs: Jobs, tier: Tier) -> None:
    """Counted by the database's clock: a slow machine is only further below the rate."""
    if jobs.engine_in is LocalEngine:
        jobs = replace(jobs, engine_in=partial(LocalEngine, threads=TASKS))
    partitions = due_partitions(tier, 2, 12)
    began_ms: dict[str, int] = {}
    at = {
        phase: partial(lambda phase: began_ms.setdefault(phase, now_ms()), phase)
        for phase in ("marking", "deleting")
    }
    done = jobs.retention([partitions[0].topic], at, apply=True, segments_per_s=RATE)
    assert done.totals["deleted_segments"] == 24
    events = [
        event
        for tp in partitions
        for event in all_events(tier.rlmm, EventQuery(tp, plan_id=done.plan_id))
    ]
    for phase, state in (
        ("marking", "DELETE_SEGMENT_STARTED"),
        ("deleting", "DELETE_SEGMENT_FINISHED"),
    ):
        times = sorted(e.at_ms for e in events if e.to_state == state)
        assert len(times) == 24
        at_once = 2 * TASKS  # a portion is the two segments of a partition
        for number, time_ms in enumerate(times, start=1):
            allowed = at_once + RATE * (time_ms - began_ms[phase]) / 1_000
            assert number <= allowed, (phase, number, time_ms - began_ms[phase])


def test_adaptive_queries_leave_a_stage_the_tasks_that_it_was_given(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert spark.conf.get("spark.sql.adaptive.enabled") == "true"
    engine, tracker = SparkEngine(spark, f"file:{tmp_path}"), spark.sparkContext.statusTracker()

    def tasks_of(stage: Callable[..., Stored], name: str, tasks: int) -> int:
        """Run a stage; return how many tasks the last stage of its last job had."""
        group = uuid4().hex
        spark.sparkContext.setJobGroup(group, group)
        stage(name, unchanged, plan, EVERYTHING, PLAN_SCHEMA, tasks)
        job = tracker.getJobInfo(max(tracker.getJobIdsForGroup(group)))
        assert job is not None
        last = tracker.getStageInfo(max(job.stageIds))
        assert last is not None
        return last.numTasks

    plan = engine.scatter("plan", plan_rows, sizes(*range(9)), PLAN_SCHEMA, 4)
    for tasks in (1, 5, 11):
        assert tasks_of(engine.by_partition, f"by-partition-{tasks}", tasks) == tasks
        assert tasks_of(engine.evenly, f"evenly-{tasks}", tasks) == tasks


@pytest.mark.long
def test_a_job_counts_the_cores_of_executors_that_come_late(tmp_path: Path) -> None:
    """In a process of its own: only one Spark may run in one."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.late_executors", str(tmp_path)],
        env=own_environment({}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.stdout == "3\n", done.stderr


class BusyRlmm(Wrapper[SqlRemoteLogMetadataManager]):
    """The real RLMM, except that it has too much to do for the first marks and deletions."""

    def __init__(self, rlmm: SqlRemoteLogMetadataManager) -> None:
        super().__init__(rlmm)
        self.refused = 0

    def update_remote_log_segment_metadata_batch(self, *arguments: Any, **named: Any) -> Any:
        if self.refused < 3:
            self.refused += 1
            raise ThrottledError("the queue is full")
        return self.real.update_remote_log_segment_metadata_batch(*arguments, **named)


def test_a_sweep_waits_for_a_service_that_has_too_much_to_do(
    in_process: ServedTier, rlmm: SqlRemoteLogMetadataManager, tmp_path: Path
) -> None:
    """Longer than for one that is away, for which it does not wait at all here."""
    busy = BusyRlmm(rlmm)
    with served_manager(busy) as (channel, address):
        client = RemoteLogMetadataManagerClient(channel, address)
        tier = ServedTier(in_process.rsm, client, in_process.rsm_address, address)
        [tp] = due_partitions(tier, 2, 1)
        options = SweepOptions(in_process.rsm_address, address, (tp.topic,), apply=True)
        config = SweepConfig(replace(options, retry_for_s=0.0))
        this = SweepRun(retention_sweep.JOB, uuid4().hex, tmp_path, lambda _: None)
        report = retention_sweep.run(LocalEngine(tmp_path), this, config)
        assert (report.outcome, busy.refused) == ("DONE", 3)
        assert tier.rows(tp) == []
