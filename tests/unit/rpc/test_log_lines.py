"""However often something happens, it fills no log."""

from services.common.log import LineBudget


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_after_a_burst_there_are_so_many_lines_a_second_and_they_say_what_is_missing() -> None:
    clock = Clock()
    budget = LineBudget(burst=3, lines_per_s=2.0, now=clock)
    assert [budget.line("refused") for _ in range(5)] == [0, 0, 0, None, None]
    clock.now += 0.5
    assert [budget.line("refused") for _ in range(3)] == [2, None, None]
    clock.now += 0.25
    assert budget.line("refused") is None
    clock.now += 0.25
    assert budget.line("refused") == 3


def test_one_kind_leaves_the_others_alone() -> None:
    budget = LineBudget(burst=1, lines_per_s=1.0, now=Clock())
    assert [budget.line(kind) for kind in ("a", "a", "b", "b")] == [0, None, 0, None]


def test_quiet_times_earn_no_more_than_a_burst() -> None:
    clock = Clock()
    budget = LineBudget(burst=2, lines_per_s=1.0, now=clock)
    clock.now += 3600
    assert [budget.line("a") for _ in range(3)] == [0, 0, None]
