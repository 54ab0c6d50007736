"""Test that a task keeps to its rate."""

import pytest

from spark_jobs.sweeps.waves import Pace


class Clock:
    """A clock that only sleeping advances."""

    now_s = 50.0

    def now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.mark.parametrize("portions", [[1] * 30, [10, 10, 10], [25, 5]])
def test_portions_of_any_size_take_as_long_as_the_rate_says(portions: list[int]) -> None:
    clock = Clock()
    pace = Pace(5.0, clock.now, clock.sleep)
    for portion in portions:
        pace.wait_for(portion)
    pace.wait_for(0)
    assert clock.now_s - Clock.now_s == pytest.approx(sum(portions) / 5.0)


def test_time_that_was_not_used_is_not_saved() -> None:
    clock = Clock()
    pace = Pace(5.0, clock.now, clock.sleep)
    pace.wait_for(5)
    clock.sleep(100.0)
    for _ in range(2):
        pace.wait_for(5)
    assert clock.now_s - Clock.now_s == pytest.approx(101.0)


def test_without_a_rate_nothing_waits() -> None:
    clock = Clock()
    pace = Pace(None, clock.now, clock.sleep)
    pace.wait_for(1_000_000)
    assert clock.now_s == Clock.now_s
