"""Test tasks that return at once, or leave while they run."""

import threading
from collections.abc import Iterator

import pytest

from services.common.cancellation import Cancellation
from services.common.retry import Backoff
from services.rlm.scheduler import Lane, Scheduler

DEADLINE_S = 10.0


@pytest.fixture
def lane() -> Iterator[Lane]:
    backoff = Backoff(initial_s=1000.0, max_s=1000.0, jitter=0.0)
    scheduler = Scheduler(backoff)
    yield scheduler.lane("test", threads=1, interval_s=1000.0)
    scheduler.stop(DEADLINE_S)


def tick(lane: Lane) -> None:
    lane.tick()
    assert lane.wait_idle(DEADLINE_S)


def test_task_with_more_to_do_runs_again_behind_waiting_tasks(lane: Lane) -> None:
    runs: list[str] = []
    left = iter([True, True, False])

    def large() -> bool:
        runs.append("large")
        return next(left)

    lane.schedule("large", large)
    lane.schedule("small", lambda: runs.append("small"))
    for _ in range(6):
        tick(lane)
    assert runs == ["large", "small", "large", "large"]


class Held:
    """A task that waits in its run for the test."""

    def __init__(self) -> None:
        self.runs = 0
        self.started, self.go_on = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.runs += 1
        self.started.set()
        assert self.go_on.wait(DEADLINE_S)


def test_a_task_of_a_key_that_was_forgotten_while_it_ran_is_waited_for() -> None:
    scheduler = Scheduler(Backoff())
    lane = scheduler.lane("test", threads=2, interval_s=0.0)
    held, after = Held(), list[int]()
    lane.schedule("p", held)
    lane.tick()
    assert held.started.wait(DEADLINE_S)
    lane.forget("p")
    lane.schedule("p", lambda: after.append(held.runs))
    lane.tick()
    assert not lane.wait_ended("p", 0.01)
    assert after == []
    held.go_on.set()
    assert lane.wait_ended("p", DEADLINE_S)
    tick(lane)
    assert after == [1]
    assert scheduler.stop(DEADLINE_S)


def test_only_the_task_that_is_named_is_forgotten(lane: Lane) -> None:
    runs: list[str] = []

    def old() -> None:
        runs.append("old")

    lane.schedule("p", old)
    lane.schedule("p", lambda: runs.append("new"))
    lane.forget("p", old)
    lane.forget("unknown")
    tick(lane)
    assert runs == ["new"]


def test_an_ending_is_set_by_itself_or_with_everything() -> None:
    everything = threading.Event()
    one, other = Cancellation(everything), Cancellation(everything)
    one.set()
    assert (one.is_set(), other.is_set()) == (True, False)
    everything.set()
    assert other.is_set()
