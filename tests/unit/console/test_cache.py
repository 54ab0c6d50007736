"""Test that answers are cached for a moment; tests of SingleFlight hold what callers share."""

from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event

import pytest

from services.console.cache import RecentAnswers


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_answer_is_kept_until_it_is_too_old() -> None:
    clock, asked = Clock(), iter(range(9))
    recent = RecentAnswers(clock=clock)

    def get() -> int:
        return recent.get("key", 1.0, lambda: next(asked))

    assert [get(), get()] == [0, 0]
    clock.now = 0.9
    assert get() == 0
    clock.now = 1.0
    assert [get(), get()] == [1, 1]
    assert recent.get("another key", 1.0, lambda: "other") == "other"


def test_a_slow_question_is_not_asked_again_while_it_is_asked() -> None:
    clock, asked, begun = Clock(), list[int](), Event()
    recent, others = RecentAnswers(clock=clock), list[Future[str]]()

    def get() -> str:
        begun.set()
        return recent.get("key", 1.0, ask)

    def ask() -> str:
        asked.append(1)
        if len(asked) == 1:
            clock.now = 10.0
            others.append(pool.submit(get))
            assert begun.wait(60)
            with pytest.raises(TimeoutError):
                others[0].result(timeout=0.2)
        return "answer"

    with ThreadPoolExecutor(1) as pool:
        assert recent.get("key", 1.0, ask) == "answer"
        assert others[0].result(timeout=60) == "answer"
    assert len(asked) == 1


def test_only_the_latest_answers_are_kept() -> None:
    recent = RecentAnswers(max_entries=2)
    for number in range(3):
        recent.get(number, 60.0, lambda: "first")
    assert [recent.get(n, 60.0, lambda: "again") for n in (2, 1, 0)] == ["first", "first", "again"]
