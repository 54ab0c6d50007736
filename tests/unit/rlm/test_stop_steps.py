"""Test the steps that release partitions: none waits for another, nor for RLMM's availability."""

from threading import Barrier, Event

from services.api.errors import RetriableRemoteStorageError
from services.rlm.roles.stopping import STEPS_AT_ONCE, run_steps


def failing() -> None:
    raise RetriableRemoteStorageError("locked")


def test_other_steps_continue_during_the_check_of_rlmm() -> None:
    asked, done = Event(), Event()

    def is_ready() -> bool:
        asked.set()
        return done.wait(10.0)

    def last() -> None:
        assert asked.wait(10.0)
        done.set()

    steps = [failing, *[lambda: None] * 20, last]
    left = run_steps(steps, is_ready)
    assert done.is_set()
    assert [step is None for step in left] == [False] + [True] * 21


def test_four_steps_are_taken_at_once() -> None:
    together = Barrier(STEPS_AT_ONCE)

    def step() -> None:
        together.wait(10.0)

    assert run_steps([step] * 2 * STEPS_AT_ONCE, lambda: True) == [None] * 2 * STEPS_AT_ONCE


def test_if_rlmm_is_away_the_rest_fails_without_a_call() -> None:
    left = run_steps([failing] * 100, lambda: False)
    assert {type(step) for step in left} == {RetriableRemoteStorageError}
