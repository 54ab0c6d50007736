"""Kills, and second copies of slow tasks, on a cluster with speculation: by one sweep or two
of one scope, what was due is deleted once, nothing else is, and rows, objects and reports agree."""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any
from uuid import UUID

import psutil
import pyspark
import pytest

from services.api.ids import TopicIdPartition, uuid_from_text
from services.local.stack import ServiceProcess, own_environment
from spark_jobs.sweeps.local_engine import LocalEngine
from tests.harness.databases import events, waiting
from tests.harness.eventually import eventually
from tests.harness.tier import HOUR_MS, OFFSETS, Tier, a_topic, ids
from tests.spark.jobs import Done, Jobs
from tests.spark.standalone import StandaloneCluster, standalone_cluster
from tests.spark.sweep_driver import SweepDriver

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1_500)]
DEADLINE_MS = 300_000
DUE, KEPT, OBJECTS = 6, 2, 3
"""Segments of the partition; objects of each."""

PHASES = ("marking", "deleting")
VICTIMS = ("driver", "executor", "worker", "RSM", "RLMM")
KILLS = list(product(VICTIMS, PHASES, (1, 2)))
"""The victim, while what it dies, and how many sweeps of the scope run.

`worker` is the host of an executor: the cluster's Worker process and all that it has started.
"""


@dataclass
class Drivers:
    """The driver of a standalone cluster's sweeps; another one if it was killed."""

    cluster: StandaloneCluster
    directory: Path
    started: list[SweepDriver] = field(default_factory=list)

    def current(self) -> SweepDriver:
        if not self.started or self.started[-1].process.poll() is not None:
            directory = self.directory / f"driver-{len(self.started)}"
            directory.mkdir()
            self.started.append(SweepDriver(self.cluster.master, directory))
        return self.started[-1]

    def stop(self) -> None:
        for each in self.started:
            each.process.communicate()  # Ends its orders.


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    """Two executors at different addresses, so that Spark starts second copies of tasks."""
    directory = tmp_path_factory.mktemp("cluster")
    environment = own_environment({"PYSPARK_PYTHON": sys.executable})
    home = Path(pyspark.__file__).parent
    with standalone_cluster(home, environment, directory, ("127.0.0.1", "127.0.0.2")) as cluster:
        drivers = Drivers(cluster, directory)
        yield drivers
        drivers.stop()


@dataclass
class Scope:
    """A partition with segments to delete and to keep, and the sweeps over it."""

    tier: Tier
    tp: TopicIdPartition
    due: frozenset[UUID]
    reports: list[dict[str, Any]] = field(default_factory=list)

    def options(self) -> dict[str, Any]:
        rsm, rlmm = self.tier.rsm_process.address, self.tier.rlmm_process.address
        return {"rsm": rsm, "rlmm": rlmm, "topics": [self.tp.topic], "apply": True, "batch_size": 2}

    def end(self, said: dict[str, Any]) -> str:
        """Keep the report of a sweep that has ended; return it in words."""
        if not said:
            return "no report"
        assert "error" not in said, said
        return self.keep(json.loads(Path(said["report"]).read_text()))

    def keep(self, report: dict[str, Any]) -> str:
        self.reports.append(report)
        return in_words(report)

    def check(self) -> None:
        """Check that rows, objects, audit trail and reports agree."""
        rows, objects = self.tier.rows(self.tp), self.tier.objects(self.tp.topic_id)
        due = len(self.due)
        assert [row.start_offset for row in rows] == [(due + n) * OFFSETS for n in range(KEPT)]
        assert {row.state.name for row in rows} == {"COPY_SEGMENT_FINISHED"}
        names = [each.hex for each in ids(rows)]
        assert len(objects) == OBJECTS * KEPT
        assert all(any(name in key for name in names) for key in objects)
        trail = [e for e in events(self.tier.engine, self.tp) if "DELETE_SEG" in str(e.to_state)]
        assert {e.segment_id for e in trail} == self.due
        steps = Counter((e.segment_id, e.to_state) for e in trail)
        assert set(steps.values()) == {1}
        assert len(steps) == 2 * due
        by = {e.segment_id: e.plan_id for e in trail if "FINISH" in str(e.to_state)}
        self._check_reports(by)

    def _check_reports(self, by: dict[UUID, str]) -> None:
        """Check that each deletion is in the report of the sweep whose name it bears in the trail.

        Only a killed driver's are in none.
        """
        plans = {report["plan_id"] for report in self.reports}
        unreported = {segment for segment, plan in by.items() if plan not in plans}
        claimed = set[UUID]()
        for report in self.reports:
            deleted = deleted_in(report)
            assert deleted <= self.due
            assert len(deleted) == report["totals"]["deleted_segments"]
            assert deleted >= {s for s, plan in by.items() if plan == report["plan_id"]}
            claimed |= deleted
        assert claimed | unreported == self.due
        if len(self.reports) == 2 and self.reports[-1]["totals"]["planned_segments"] == 0:
            assert deleted_in(self.reports[0]) == self.due


def deleted_in(report: dict[str, Any]) -> set[UUID]:
    rows = report["segments"]
    return {uuid_from_text(s["segment_id"], "id") for s in rows if s["outcome"] == "DELETED"}


def in_words(report: dict[str, Any]) -> str:
    totals = report["totals"]
    deleted, planned = totals["deleted_segments"], totals["planned_segments"]
    if not planned:
        return f"{report['outcome']}, nothing was left"
    resumed = totals["resumed_segments"]
    more = f", {resumed} of them marked before" if resumed else ""
    return f"{report['outcome']}, {deleted} of {planned} deleted{more}"


def a_scope(tier: Tier, due: int = DUE) -> Scope:
    [tp] = a_topic()
    made = tier.fill(tp, due)
    tier.fill(tp, KEPT, first=due, age_ms=0)
    tier.report(tp, due + KEPT)
    tier.settings(tp.topic_id, {"retention.ms": str(HOUR_MS)})
    return Scope(tier, tp, frozenset(ids(made)))


def callers(address: str) -> list[tuple[psutil.Process, psutil.Process]]:
    """Return the Python workers that are connected to the address, each with its executor."""
    port = int(address.rpartition(":")[2])
    found = []
    for executor in filter(is_executor, psutil.Process().children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            for worker in executor.children(recursive=True):
                for each in worker.net_connections():
                    if each.status == psutil.CONN_ESTABLISHED and each.raddr.port == port:
                        found.append((executor, worker))
    return found


def is_executor(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return "CoarseGrainedExecutorBackend" in " ".join(process.cmdline())
    return False


def waiting_workers(tier: Tier, count: int) -> list[tuple[psutil.Process, psutil.Process]]:
    """Wait until so many Python workers, each of another executor, wait for RLMM."""

    def found() -> list[tuple[psutil.Process, psutil.Process]]:
        calling = callers(tier.rlmm_process.address)
        executors = {executor.pid for executor, _ in calling}
        return calling if len(executors) >= count and waiting(tier.engine) >= count else []

    return eventually(found, DEADLINE_MS)


def kill(victim: str, tier: Tier, drivers: Drivers) -> None:
    """Kill a process while a Python worker waits for RLMM; start again what a supervisor would."""
    eventually(lambda: waiting(tier.engine), DEADLINE_MS)
    executor, _ = eventually(lambda: callers(tier.rlmm_process.address), DEADLINE_MS)[0]
    if victim == "driver":
        driver = drivers.current()
        kill_tree(driver.process.pid)
        driver.process.wait()
    elif victim == "executor":
        executor.kill()
    elif victim == "worker":
        above = {each.pid for each in executor.parents()}
        [worker] = [w for w in drivers.cluster.workers if w.process.pid in above]
        kill_tree(worker.process.pid)
        drivers.cluster.start_again(worker)
    else:
        service = tier.rsm_process if victim == "RSM" else tier.rlmm_process
        service.kill()
        service.start()


def kill_tree(pid: int) -> None:
    root = psutil.Process(pid)
    for each in [root, *root.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            each.kill()


class TogetherWithAnother:
    """Lets two sweeps of one scope begin each phase together, until one of them has ended."""

    def __init__(self, sweeps: int) -> None:
        self._barrier = Barrier(sweeps, timeout=600)

    def begin(self) -> None:
        with suppress(BrokenBarrierError):
            self._barrier.wait()

    def end(self, _: object = None) -> None:
        self._barrier.abort()


@pytest.mark.parametrize(("victim", "phase", "sweeps"), KILLS)
def test_a_kill_loses_nothing_and_deletes_nothing_twice(
    drivers: Drivers,
    tier: Tier,
    tmp_path: Path,
    victim: str,
    phase: str,
    sweeps: int,
) -> None:
    scope, driver, together = a_scope(tier), drivers.current(), TogetherWithAnother(sweeps)
    local, topics = Jobs(LocalEngine, tier, tmp_path), [scope.tp.topic]
    said: dict[str, Any] = {}
    with ThreadPoolExecutor(1) as pool:
        other: Future[Done] | None = None
        if sweeps == 2:
            at = dict.fromkeys(PHASES, together.begin)
            other = pool.submit(lambda: local.retention(topics, at, apply=True, batch_size=2))
            other.add_done_callback(together.end)
        for said in driver.sweep(scope.options()):
            begun = said.get("phase")
            if begun != phase:
                if begun in PHASES:
                    together.begin()
                if begun is not None:
                    driver.go_on()
            elif (victim, phase) == ("RSM", "deleting"):
                with dies_in_deletion(tier.rsm_process):
                    together.begin()
                    driver.go_on()
            else:
                with tier.held_up(scope.tp):
                    together.begin()
                    driver.go_on()
                    kill(victim, tier, drivers)
        together.end()
        ended = scope.end(said)
        if other is not None:
            scope.keep(other.result().document)
    last = local.retention(topics, apply=True)
    left = scope.keep(last.document)
    assert last.outcome == "DONE"
    if victim == "driver":
        assert ended == "no report"
    else:
        assert left == "DONE, nothing was left"
    scope.check()


@contextmanager
def dies_in_deletion(rsm: ServiceProcess) -> Iterator[None]:
    """Let RSM kill itself when it has deleted some objects of a segment; start it again."""
    rsm.kill()
    rsm.start({"SEDIMENT_FAILPOINT": "rsm.delete_some"})
    yield
    eventually(lambda: not rsm.process.is_running(), DEADLINE_MS)
    rsm.start()


@pytest.mark.parametrize("phase", PHASES)
def test_a_copy_of_a_task_whose_worker_is_stopped_does_its_work(
    drivers: Drivers, tier: Tier, phase: str
) -> None:
    """The call of the stopped worker is carried out, too: only its answer is not read."""
    scope, driver = a_scope(tier), drivers.current()
    stopped: list[psutil.Process] = []
    said: dict[str, Any] = {}
    for said in driver.sweep(scope.options()):
        if said.get("phase") == phase:
            with tier.held_up(scope.tp):
                driver.go_on()
                # One task marks a partition; both delete its segments.
                _, worker = waiting_workers(tier, 1 if phase == "marking" else 2)[0]
                worker.suspend()
                stopped.append(worker)
        elif "phase" in said:
            driver.go_on()
    assert scope.end(said) == f"DONE, {DUE} of {DUE} deleted"
    for worker in stopped:
        with suppress(psutil.NoSuchProcess):  # Spark may have killed it.
            worker.resume()
    scope.check()


def test_a_task_and_its_copy_that_do_the_same_at_once_count_once(
    drivers: Drivers, tier: Tier
) -> None:
    """One task marks the partition; the other is done at once, and Spark copies the first."""
    scope, driver = a_scope(tier, due=1), drivers.current()
    said: dict[str, Any] = {}
    for said in driver.sweep(scope.options()):
        if said.get("phase") == "marking":
            with tier.held_up(scope.tp):
                driver.go_on()
                waiting_workers(tier, 2)
        elif "phase" in said:
            driver.go_on()
    assert scope.end(said) == "DONE, 1 of 1 deleted"
    scope.check()
