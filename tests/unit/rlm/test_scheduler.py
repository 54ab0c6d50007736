import threading
from collections.abc import Iterator
from random import Random

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from services.common.log import LINES_PER_WINDOW
from services.common.retry import Backoff
from services.rlm.collectors import LastSuccessCollector
from services.rlm.partition import Finishing
from services.rlm.scheduler import Lane, PassFailedError, RunAgain, Scheduler
from tests.harness.clocks import Clock
from tests.unit.rlm.kafka_bytes import NAME

DEADLINE_S = 10.0
AGES = "sediment_rlm_seconds_since_last_success"


@pytest.fixture
def scheduler(clock: Clock) -> Iterator[Scheduler]:
    backoff = Backoff(initial_s=10.0, max_s=80.0, jitter=0.0)
    made = Scheduler(backoff, clock)
    yield made
    made.stop(DEADLINE_S)


@pytest.fixture
def lane(scheduler: Scheduler) -> Lane:
    return scheduler.lane("test", threads=2, interval_s=30.0)


def tick(lane: Lane) -> None:
    lane.tick()
    assert lane.wait_idle(DEADLINE_S)


def test_a_task_runs_at_once_and_then_once_an_interval(lane: Lane, clock: Clock) -> None:
    runs: list[float] = []
    lane.schedule("p", lambda: runs.append(clock.now_s))
    for clock.now_s in (0.0, 29.0, 30.0, 31.0, 60.0):
        tick(lane)
    assert runs == [0.0, 30.0, 60.0]


@pytest.mark.parametrize("error", [ValueError, MemoryError, SystemExit, KeyboardInterrupt])
def test_task_that_raises_any_error_runs_again(
    lane: Lane, clock: Clock, error: type[BaseException]
) -> None:
    runs: list[float] = []

    def task() -> None:
        runs.append(clock.now_s)
        raise error

    lane.schedule("p", task)
    for clock.now_s in (0.0, 4.0, 10.0):
        tick(lane)
    assert runs == [0.0, 10.0]


def test_a_failing_partition_delays_no_other(lane: Lane, clock: Clock) -> None:
    runs: list[str] = []

    def sick() -> None:
        runs.append("sick")
        raise ValueError

    lane.schedule("sick", sick)
    lane.schedule("well", lambda: runs.append("well"))
    for clock.now_s in (0.0, 30.0, 60.0):
        tick(lane)
    assert runs.count("well") == 3


def test_success_ends_the_back_off(lane: Lane, clock: Clock) -> None:
    outcomes = iter([True, True, False, True, False])
    runs: list[float] = []

    def task() -> None:
        runs.append(clock.now_s)
        if next(outcomes):
            raise ValueError

    lane.schedule("p", task)
    for clock.now_s in (0.0, 10.0, 30.0, 59.0, 60.0, 64.0, 70.0):
        tick(lane)
    assert runs == [0.0, 10.0, 30.0, 60.0, 70.0]


def test_no_more_tasks_run_at_once_than_there_are_threads(lane: Lane) -> None:
    gate, started = threading.Event(), threading.Semaphore(0)
    running: list[str] = []

    def task(name: str) -> None:
        running.append(name)
        started.release()
        assert gate.wait(DEADLINE_S)

    for name in ("a", "b", "c"):
        lane.schedule(name, lambda name=name: task(name))  # type: ignore[misc]
    lane.tick()
    assert started.acquire(timeout=DEADLINE_S)
    assert started.acquire(timeout=DEADLINE_S)
    lane.tick()
    # Two threads: which of them gets to its task first is not determined.
    assert sorted(running) == ["a", "b"]
    gate.set()
    assert lane.wait_idle(DEADLINE_S)
    tick(lane)
    assert running[2:] == ["c"]


def test_a_task_in_progress_is_not_started_twice(lane: Lane, clock: Clock) -> None:
    gate, started = threading.Event(), threading.Event()
    runs: list[float] = []

    def task() -> None:
        runs.append(clock.now_s)
        started.set()
        assert gate.wait(DEADLINE_S)

    lane.schedule("p", task)
    lane.tick()
    assert started.wait(DEADLINE_S)
    clock.now_s = 1000.0
    lane.tick()
    gate.set()
    assert lane.wait_idle(DEADLINE_S)
    assert runs == [0.0]


def test_a_partition_that_went_is_not_run_again(lane: Lane, clock: Clock) -> None:
    runs: list[str] = []
    lane.schedule("p", lambda: runs.append("p"))
    lane.schedule("q", lambda: runs.append("q"))
    lane.forget("p")
    tick(lane)
    assert runs == ["q"]


def test_after_a_stop_nothing_starts(scheduler: Scheduler, lane: Lane) -> None:
    runs: list[str] = []
    lane.schedule("p", lambda: runs.append("p"))
    assert scheduler.stop(DEADLINE_S)
    lane.tick()
    assert runs == []


def test_a_stop_returns_whether_a_task_outlasts_its_grace(scheduler: Scheduler, lane: Lane) -> None:
    gate, started = threading.Event(), threading.Event()

    def task() -> None:
        started.set()
        gate.wait(DEADLINE_S)

    lane.schedule("p", task)
    lane.tick()
    assert started.wait(DEADLINE_S)
    assert not scheduler.stop(0.01)
    gate.set()
    assert scheduler.stop(DEADLINE_S)


def test_ticker_thread_runs_tasks() -> None:
    twice = threading.Semaphore(0)
    scheduler = Scheduler(Backoff())
    lane = scheduler.lane("test", threads=1, interval_s=0.01)
    lane.schedule("p", twice.release)
    scheduler.start()
    assert twice.acquire(timeout=DEADLINE_S)
    assert twice.acquire(timeout=DEADLINE_S)
    assert scheduler.stop(DEADLINE_S)


@pytest.fixture
def ticking() -> Iterator[Lane]:
    """Provide a lane whose ticker wakes by itself once an hour."""
    backoff = Backoff(initial_s=0.01, max_s=0.01)
    made = Scheduler(backoff)
    lane = made.lane("test", threads=1, interval_s=3600.0)
    made.start()
    lane.schedule("first", lambda: None)
    assert lane.wait_ended("first", DEADLINE_S)
    yield lane
    assert made.stop(DEADLINE_S)


def test_a_task_that_comes_while_the_ticker_waits_begins_at_once(ticking: Lane) -> None:
    ran = threading.Event()
    ticking.schedule("p", ran.set)
    assert ran.wait(DEADLINE_S)


@pytest.mark.parametrize("outcome", [True, RunAgain(), RunAgain(0.06), ValueError()])
def test_the_ticker_wakes_for_a_turn_that_comes_before_the_interval(
    ticking: Lane, outcome: bool | RunAgain | ValueError
) -> None:
    runs = threading.Semaphore(0)

    def task() -> bool | RunAgain:
        runs.release()
        if isinstance(outcome, ValueError):
            raise outcome
        return outcome

    ticking.schedule("p", task)
    for _ in range(3):
        assert runs.acquire(timeout=DEADLINE_S)


def test_waiting_tasks_run_when_a_thread_is_free(ticking: Lane) -> None:
    gate, done = threading.Event(), threading.Semaphore(0)

    def task() -> None:
        assert gate.wait(DEADLINE_S)
        done.release()

    for name in range(20):
        ticking.schedule(name, task)
    gate.set()
    for _ in range(20):
        assert done.acquire(timeout=DEADLINE_S)


def test_age_of_last_success_grows_until_the_next(lane: Lane, clock: Clock) -> None:
    lane.schedule("p", lambda: None)
    tick(lane)
    clock.now_s = 12.0
    assert lane.seconds_since_last_success() == {"p": 12.0}
    clock.now_s = 30.0
    tick(lane)
    assert lane.seconds_since_last_success() == {"p": 0.0}


def test_task_that_never_succeeded_ages_from_its_first_run(lane: Lane, clock: Clock) -> None:
    def fail() -> None:
        raise ValueError

    clock.now_s = 5.0
    lane.schedule("p", fail)
    tick(lane)
    clock.now_s = 12.0
    lane.schedule("p", fail)
    assert lane.seconds_since_last_success() == {"p": 7.0}


@pytest.mark.parametrize(("after_s", "due_s"), [(7.0, 7.0), (1e9, 30.0)])
def test_unfinished_pass_runs_again_after_its_delay_and_is_no_success(
    lane: Lane, clock: Clock, after_s: float, due_s: float
) -> None:
    runs: list[float] = []

    def task() -> RunAgain:
        runs.append(clock.now_s)
        return RunAgain(after_s)

    clock.now_s = 5.0
    lane.schedule("p", task)
    tick(lane)
    clock.now_s = 5.0 + due_s - 0.1
    tick(lane)
    assert runs == [5.0]
    clock.now_s = 5.0 + due_s
    tick(lane)
    assert runs == [5.0, 5.0 + due_s]
    assert lane.seconds_since_last_success() == {"p": due_s}


def ages(lane: Lane) -> list[str]:
    registry = CollectorRegistry()
    registry.register(LastSuccessCollector([lane]))
    return [line for line in generate_latest(registry).decode().splitlines() if "{" in line]


def test_a_partition_takes_its_labels_along_when_it_goes(lane: Lane, clock: Clock) -> None:
    lane.schedule("scan", lambda: None)
    lane.schedule(NAME, lambda: None)
    clock.now_s = 3.0
    of_scan = f'{AGES}{{partition="",pool="test",topic=""}} 3.0'
    assert ages(lane) == [of_scan, f'{AGES}{{partition="0",pool="test",topic="t"}} 3.0']
    lane.forget(NAME)
    assert ages(lane) == [of_scan]


def test_of_two_tasks_of_a_partition_the_longer_wait_is_published(lane: Lane, clock: Clock) -> None:
    lane.schedule(Finishing(NAME), lambda: None)
    clock.now_s = 3.0
    lane.schedule(NAME, lambda: None)
    assert ages(lane) == [f'{AGES}{{partition="0",pool="test",topic="t"}} 3.0']


@pytest.mark.parametrize(("failures", "full_s"), [(1, 1), (2, 2), (4, 8), (5, 10), (10_000, 10)])
@pytest.mark.parametrize("jitter", [0.0, 0.2, 0.5])
def test_back_off_doubles_up_to_its_maximum_give_or_take_its_jitter(
    failures: int, full_s: float, jitter: float
) -> None:
    backoff = Backoff(initial_s=1.0, max_s=10.0, jitter=jitter, chance=Random(1))
    delays = [backoff.delay_s(failures) for _ in range(500)]
    assert full_s * (1 - jitter) <= min(delays) <= full_s * (1 - 0.9 * jitter)
    assert full_s * (1 + 0.9 * jitter) <= max(delays) <= full_s * (1 + jitter)


def test_the_age_grows_until_a_run_succeeds(lane: Lane, clock: Clock) -> None:
    lane.schedule(NAME, lambda: None)
    clock.now_s = 7.0
    assert ages(lane) == [f'{AGES}{{partition="0",pool="test",topic="t"}} 7.0']
    tick(lane)
    assert ages(lane) == [f'{AGES}{{partition="0",pool="test",topic="t"}} 0.0']


def test_while_all_tasks_fail_the_log_names_some_and_counts_the_others(
    lane: Lane, clock: Clock, limited_log: pytest.LogCaptureFixture
) -> None:
    def away() -> None:
        raise PassFailedError("the store is away")

    for number in range(300):
        lane.schedule(f"partition {number}", away)
    for _ in range(300):
        tick(lane)
    assert len(limited_log.records) == LINES_PER_WINDOW
    assert "a task failed: partition 0: the store is away" in limited_log.text


class Threads:
    """The machine's threads: as many starts fail as the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.are_out = False
        self.refused = threading.Semaphore(0)
        self._start = threading.Thread.start
        monkeypatch.setattr(threading.Thread, "start", lambda thread: self._started(thread))

    def _started(self, thread: threading.Thread) -> None:
        if self.are_out and thread.name == "test":
            self.refused.release()
            raise RuntimeError("can't start new thread")
        self._start(thread)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    return Threads(monkeypatch)


def test_a_task_for_which_there_was_no_thread_is_run_once_after_its_back_off(
    lane: Lane, clock: Clock, threads: Threads, caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[tuple[str, float]] = []
    lane.schedule("p", lambda: runs.append(("p", clock.now_s)))
    threads.are_out = True
    tick(lane)
    assert lane.idle_ratio == 1.0
    assert "a task failed: p: no thread could be started: can't start new thread" in caplog.text
    threads.are_out = False
    clock.now_s = 5.0
    lane.schedule("q", lambda: runs.append(("q", clock.now_s)))
    tick(lane)
    assert runs == [("q", 5.0)]
    clock.now_s = 10.0
    tick(lane)
    assert runs == [("q", 5.0), ("p", 10.0)]


def test_while_there_are_no_threads_few_are_asked_for(
    lane: Lane, clock: Clock, threads: Threads
) -> None:
    threads.are_out = True
    for number in range(100):
        lane.schedule(number, lambda: None)
    for tenths in range(31):
        clock.now_s = tenths / 10
        tick(lane)
    asked = 0
    while threads.refused.acquire(blocking=False):
        asked += 1
    assert asked == 4


def test_the_ticker_outlives_a_start_that_failed(threads: Threads) -> None:
    backoff = Backoff(initial_s=0.01, max_s=0.01)
    scheduler = Scheduler(backoff)
    lane = scheduler.lane("test", threads=1, interval_s=3600.0)
    ran = threading.Event()
    threads.are_out = True
    scheduler.start()
    lane.schedule("p", ran.set)
    assert threads.refused.acquire(timeout=DEADLINE_S)
    threads.are_out = False
    assert ran.wait(DEADLINE_S)
    assert scheduler.stop(DEADLINE_S)
