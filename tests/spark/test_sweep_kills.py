"""Whatever is killed, and whenever: the run itself, or the next one, deletes all that was due and
nothing else, and the report and the audit trail say the same."""

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

import psutil
import pytest
from pyspark.sql import SparkSession

from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import all_partitions
from spark_jobs.sweeps.sweep_error import SweepError
from tests.harness.databases import events, waiting
from tests.harness.eventually import eventually
from tests.harness.tier import HOUR_MS, OFFSETS, Tier, a_topic, ids
from tests.spark.commands import command, ended, plan_id_of, start
from tests.spark.jobs import Done, Jobs

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_500)]
KILLED = -9
DUE = 6
OBJECTS = 3
"""Of each segment."""
# Of begin_deletion and of finish_deletion one each: the services' tests kill at every one.
TASKS = ["deletion.marked_some", pytest.param("deletion.objects_deleted", marks=pytest.mark.long)]
DRIVER = [
    pytest.param("sweep.planned", marks=pytest.mark.long),
    "sweep.marked",
    pytest.param("sweep.deleted", marks=pytest.mark.long),
]


@pytest.fixture
def due(tier: Tier) -> TopicIdPartition:
    """DUE segments to delete, two to keep."""
    [tp] = a_topic()
    tier.fill(tp, DUE)
    tier.fill(tp, 2, first=DUE, age_ms=0)
    tier.report(tp, DUE + 2)
    tier.settings(tp.topic_id, {"retention.ms": str(HOUR_MS)})
    return tp


def assert_only_what_was_due_is_gone(tier: Tier, tp: TopicIdPartition, last: Done) -> None:
    assert last.outcome == "DONE"
    rows = tier.rows(tp)
    assert [row.start_offset for row in rows] == [DUE * OFFSETS, (DUE + 1) * OFFSETS]
    assert {row.state.name for row in rows} == {"COPY_SEGMENT_FINISHED"}
    names = [each.hex for each in ids(rows)]
    objects = tier.objects(tp.topic_id)
    assert len(objects) == OBJECTS * len(rows)
    assert all(any(name in key for name in names) for key in objects)
    assert tier.rlmm.partition_state(tp).value.log_start_offset == DUE * OFFSETS
    assert_each_went_once(tier, tp, last, DUE)


def assert_each_went_once(tier: Tier, tp: TopicIdPartition, last: Done, segments: int) -> None:
    """In the audit trail; and what it has under the last run's plan id is what that reports."""
    of_segments = [e for e in events(tier.engine, tp) if "DELETE_SEGMENT" in str(e.to_state)]
    assert len({(e.segment_id, e.to_state) for e in of_segments}) == len(of_segments)
    assert len(of_segments) == 2 * segments
    mine = Counter(e.to_state for e in of_segments if e.plan_id == last.plan_id)
    new = last.totals["planned_segments"] - last.totals["resumed_segments"]
    assert mine["DELETE_SEGMENT_STARTED"] == new
    # What a killed run had confirmed without telling is planned again by nobody.
    assert mine["DELETE_SEGMENT_FINISHED"] == last.totals["deleted_segments"]


@contextmanager
def armed(spark: SparkSession, failpoint: str) -> Iterator[None]:
    """Python workers that are made inside kill themselves there, each anew."""
    environment = spark.sparkContext.environment
    environment["SEDIMENT_FAILPOINT"] = failpoint
    yield
    del environment["SEDIMENT_FAILPOINT"]


@pytest.mark.parametrize("name", TASKS)
def test_workers_killed_on_the_way_fail_the_run_and_the_next_one_finishes(
    jobs: Jobs, tier: Tier, spark: SparkSession, due: TopicIdPartition, name: str
) -> None:
    with armed(spark, name), pytest.raises(SweepError):
        jobs.retention([due.topic], apply=True, batch_size=2)
    assert {row.state.name for row in tier.rows(due)[:DUE]} == {"DELETE_SEGMENT_STARTED"}
    done = jobs.retention([due.topic], apply=True)
    assert done.totals["resumed_segments"] == DUE
    assert_only_what_was_due_is_gone(tier, due, done)


@pytest.mark.long
def test_workers_killed_while_a_partition_is_removed(
    jobs: Jobs, tier: Tier, spark: SparkSession, due: TopicIdPartition
) -> None:
    tier.mark_deleted(due)
    with armed(spark, "removal.partition_started"), pytest.raises(SweepError):
        jobs.removal([due.topic], apply=True)
    assert len(tier.rows(due)) == DUE + 2
    done = jobs.removal([due.topic], apply=True)
    assert done.totals["deleted_segments"] == DUE + 2
    assert tier.objects(due.topic_id) == {}
    assert due not in [summary.topic_id_partition for summary in all_partitions(tier.rlmm)]
    assert_each_went_once(tier, due, done, DUE + 2)


def executors(spark: SparkSession) -> list[psutil.Process]:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    driver = psutil.Process(int(jvm.ProcessHandle.current().pid()))
    alive = [p for p in driver.children() if p.status() != psutil.STATUS_ZOMBIE]
    return [p for p in alive if "CoarseGrainedExecutor" in str(p.cmdline())]


Kill = Callable[[Tier, psutil.Process], None]
"""Kill a process while an executor waits for RLMM."""


def kill_the_executor(tier: Tier, waiting_one: psutil.Process) -> None:
    waiting_one.kill()


def kill_its_python_workers(tier: Tier, waiting_one: psutil.Process) -> None:
    for worker in waiting_one.children(recursive=True):
        worker.kill()


def one_that_calls(spark: SparkSession, address: str) -> psutil.Process:
    """An executor of which a Python worker is connected to the address."""
    port = int(address.rpartition(":")[2])
    return next(
        executor
        for executor in executors(spark)
        for worker in executor.children(recursive=True)
        for connection in worker.net_connections()
        if connection.status == psutil.CONN_ESTABLISHED and connection.raddr.port == port
    )


@pytest.mark.parametrize(
    ("kill", "phase"),
    [
        (kill_the_executor, "deleting"),
        pytest.param(kill_its_python_workers, "marking", marks=pytest.mark.long),
    ],
)
def test_a_task_that_is_lost_half_way_is_done_again_and_counts_once(
    jobs: Jobs,
    tier: Tier,
    spark: SparkSession,
    due: TopicIdPartition,
    phase: str,
    kill: Kill,
) -> None:
    """It, or a service, dies while RLMM has its call, which may be carried out afterwards."""
    begun = Event()

    def kill_who_waits() -> None:
        with tier.held_up(due):
            begun.set()
            eventually(lambda: waiting(tier.engine), deadline_ms=300_000)
            kill(tier, one_that_calls(spark, tier.rlmm_process.address))

    with ThreadPoolExecutor(1) as pool:
        killed: list[Future[None]] = []

        def hold_up() -> None:
            killed.append(pool.submit(kill_who_waits))
            begun.wait()

        done = jobs.retention([due.topic], {phase: hold_up}, apply=True)
    for future in killed:
        future.result()
    assert done.totals["deleted_segments"] == DUE
    assert_only_what_was_due_is_gone(tier, due, done)


@pytest.mark.long
def test_a_service_that_stays_away_ends_the_run_in_one_line_that_names_it(
    jobs: Jobs, tier: Tier, due: TopicIdPartition
) -> None:
    with pytest.raises(SweepError, match=rf"rlmm at {tier.rlmm_process.address}") as raised:
        jobs.retention(
            [due.topic], {"marking": tier.rlmm_process.kill}, apply=True, retry_for_s=0.1
        )
    assert "\n" not in str(raised.value)
    assert raised.value.exit_code == 3
    tier.start_rlmm()
    assert_only_what_was_due_is_gone(tier, due, jobs.retention([due.topic], apply=True))


@pytest.mark.parametrize("name", DRIVER)
def test_a_driver_killed_between_its_phases_reports_nothing_and_the_next_run_finishes(
    jobs: Jobs, tier: Tier, due: TopicIdPartition, name: str
) -> None:
    argv = command(tier, "retention", "--topic", due.topic, "--apply", "--batch-size", "2")
    killed = ended(start(argv, {"SEDIMENT_FAILPOINT": name}))
    assert (killed.exit_code, killed.report) == (KILLED, {})
    done = jobs.retention([due.topic], apply=True)
    marked = DUE if name == "sweep.marked" else 0
    assert done.totals["resumed_segments"] == marked
    assert done.totals["deleted_segments"] == (0 if name == "sweep.deleted" else DUE)
    earlier = list(done.segments("earlier_plan_id").values())
    assert earlier.count(plan_id_of(killed)) == marked
    assert_only_what_was_due_is_gone(tier, due, done)
