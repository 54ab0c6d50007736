"""Passes of retention share the room for the segments that they list."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from services.rlm.retention.snapshot import Place, SegmentBudget
from tests.harness.eventually import eventually

DEADLINE_S = 10.0


class Pass:
    """Lists `segments` in a thread of its own, until it is let go."""

    def __init__(self, budget: SegmentBudget, segments: int) -> None:
        self._budget = budget
        self._segments = segments
        self._let_go = threading.Event()
        self.entered = threading.Event()
        self.stopping = threading.Event()
        self.place: Place | None = None

    def run(self) -> bool:
        """False: it was stopped before there was room."""
        with self._budget.place(self._segments, self.stopping) as self.place:
            if self.place is None:
                return False
            self.entered.set()
            assert self._let_go.wait(DEADLINE_S)
            return True

    def end(self) -> None:
        self._let_go.set()


Begin = Callable[[int], tuple[Pass, "Future[bool]"]]


@pytest.fixture
def budget() -> SegmentBudget:
    return SegmentBudget(100)


@pytest.fixture
def begin(budget: SegmentBudget) -> Iterator[Begin]:
    with ThreadPoolExecutor(8) as pool, ExitStack() as ends:

        def begun(segments: int) -> tuple[Pass, Future[bool]]:
            before = budget.waiting
            one = Pass(budget, segments)
            ends.callback(one.end)
            outcome = pool.submit(one.run)
            eventually(lambda: one.entered.is_set() or budget.waiting > before)
            return one, outcome

        yield begun


def test_what_fits_in_together_is_let_in_together(begin: Begin) -> None:
    passes = [begin(segments)[0] for segments in (60, 30, 10)]
    assert all(one.entered.is_set() for one in passes)
    late, _ = begin(1)
    assert not late.entered.is_set()
    passes[2].end()
    assert late.entered.wait(DEADLINE_S)


def test_one_that_has_more_than_there_is_room_for_is_alone(begin: Begin) -> None:
    small, _ = begin(1)
    huge, _ = begin(1_000_000)
    assert not huge.entered.is_set()
    small.end()
    assert huge.entered.wait(DEADLINE_S)
    other, _ = begin(1)
    assert not other.entered.is_set()
    huge.end()
    assert other.entered.wait(DEADLINE_S)


def test_a_large_one_is_not_overtaken(begin: Begin) -> None:
    first, _ = begin(50)
    large, _ = begin(80)
    small, _ = begin(10)
    assert not small.entered.is_set()
    first.end()
    assert large.entered.wait(DEADLINE_S)
    assert small.entered.wait(DEADLINE_S)


def test_a_stop_ends_the_wait_and_nobody_waits_behind_it(begin: Begin) -> None:
    first, _ = begin(50)
    large, outcome = begin(80)
    small, _ = begin(10)
    large.stopping.set()
    assert outcome.result(DEADLINE_S) is False
    assert small.entered.wait(DEADLINE_S)
    first.end()
    assert begin(90)[0].entered.wait(DEADLINE_S)


def test_what_is_given_back_early_lets_others_in(begin: Begin) -> None:
    first, _ = begin(1_000)
    waiting, _ = begin(60)
    assert first.place is not None
    first.place.keep(500)
    assert not waiting.entered.is_set()
    first.place.keep(40)
    assert waiting.entered.wait(DEADLINE_S)
    first.place.keep(90)
    first.end()
    waiting.end()
    assert begin(100)[0].entered.wait(DEADLINE_S)


def test_a_pass_that_fails_gives_its_place_back(budget: SegmentBudget, begin: Begin) -> None:
    with pytest.raises(ValueError, match="sick"), budget.place(100, threading.Event()):
        raise ValueError("sick")
    assert begin(100)[0].entered.is_set()
