"""The rate of all copies of a process: KIP-956, with a clock of the test's own."""

import threading
from collections.abc import Callable

import pytest
from prometheus_client import REGISTRY

from services.rlm.copy.quota import CopyQuota, CopyQuotaLimit


class Time:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def time() -> Time:
    return Time()


def quota(
    time: Time, bytes_per_second: int = 100, windows: int = 11, window_s: int = 1
) -> CopyQuota:
    return CopyQuota(CopyQuotaLimit(bytes_per_second, windows, window_s), time)


def always() -> bool:
    return True


def admitted_at(time: Time, quota: CopyQuota, *sizes: int) -> list[float]:
    """When each of the segments passed, in seconds from now, one straight after the other."""
    began_s, at = time.now_s, []
    for size in sizes:
        while wait_s := quota.admit("p", size, always):
            time.now_s += wait_s
        at.append(time.now_s - began_s)
    return at


def about(*at_s: float) -> object:
    """Nobody is told to come back at once."""
    return pytest.approx(list(at_s), abs=0.5)


def test_without_a_limit_nothing_waits(time: Time) -> None:
    made = CopyQuota(clock=time)
    assert admitted_at(time, made, *[2**31 - 1] * 1000) == [0.0] * 1000


def test_one_segment_above_the_limit_passes_and_the_next_waits_until_it_is_made_up_for(
    time: Time,
) -> None:
    assert admitted_at(time, quota(time), 500, 200, 1) == about(0.0, 5.0, 7.0)


def test_a_segment_larger_than_all_windows_allow_is_not_forgotten_with_them(time: Time) -> None:
    assert admitted_at(time, quota(time), 10_000, 10_000, 1) == about(0.0, 100.0, 200.0)


def test_small_segments_share_a_window(time: Time) -> None:
    assert admitted_at(time, quota(time), 40, 40, 40, 10) == about(0.0, 0.0, 0.0, 1.2)


@pytest.mark.parametrize(("windows", "window_s"), [(11, 1), (1, 1), (2, 30), (60, 60)])
def test_over_time_no_more_passes_than_the_limit_lets(
    time: Time, windows: int, window_s: int
) -> None:
    made, sizes = quota(time, 100, windows, window_s), [700, 30, 1500, 1, 90, 400] * 20
    *_, last_s = admitted_at(time, made, *sizes)
    rate = sum(sizes[:-1]) / last_s
    allowed_at_once = 100 * window_s
    assert rate <= 100 + allowed_at_once / last_s + 1
    assert rate > 90


def test_what_was_not_used_counts_for_the_windows_and_no_longer(time: Time) -> None:
    made = quota(time)
    assert admitted_at(time, made, 100) == about(0.0)
    time.now_s += 9.0
    assert admitted_at(time, made, 400, 300, 200, 1) == about(0.0, 0.0, 0.0, 1.0)
    time.now_s += 3600.0
    assert admitted_at(time, made, 200, 1) == about(0.0, 2.0)


def test_who_must_wait_has_counted_nothing_and_is_told_when_its_time_comes(time: Time) -> None:
    made = quota(time)
    assert made.admit("p", 1000, always) == 0.0
    for _ in range(3):
        assert made.admit("q", 500, always) == pytest.approx(10.0)
    time.now_s += 10.0
    assert made.seconds_until("q", 500, always) == 0.0
    assert made.admit("q", 500, always) == 0.0
    assert made.admit("p", 1, always) == pytest.approx(5.0)


def test_who_came_first_passes_first_though_others_ask_before(time: Time) -> None:
    made = quota(time)
    assert made.admit("p", 1000, always) == 0.0
    waits = [made.admit(name, size, always) for name, size in (("q", 700), ("r", 200), ("p", 1))]
    assert waits == pytest.approx([10.0, 17.0, 19.0])
    time.now_s += 10.0
    assert made.admit("r", 200, always) == pytest.approx(7.0)
    assert made.admit("s", 200, always) == pytest.approx(9.0, abs=0.1)
    assert made.admit("q", 700, always) == 0.0
    time.now_s += 7.0
    assert made.admit("r", 200, always) == 0.0


def test_who_is_not_wanted_any_more_keeps_nobody_waiting(time: Time) -> None:
    made, ended = quota(time), threading.Event()
    assert made.admit("p", 1000, always) == 0.0
    assert made.admit("withdrawn", 10**9, always)
    assert made.admit("ended", 10**9, lambda: not ended.is_set())
    assert made.admit("q", 1, always) > 10**7
    time.now_s += 10.0
    made.withdraw("withdrawn")
    made.withdraw("withdrawn")
    assert made.admit("q", 1, always)
    ended.set()
    assert made.admit("q", 1, always) == 0.0


def test_one_is_admitted_above_the_limit_of_all_who_come_at_once(time: Time) -> None:
    made = quota(time)
    assert made.admit("p", 1000, always) == 0.0
    names = [str(number) for number in range(50)]
    for name in names:
        assert made.admit(name, 1000, always)
    time.now_s += 10.0
    passed = [name for name in reversed(names) if not made.admit(name, 1000, always)]
    assert passed == ["0"]


def test_who_does_not_come_back_in_time_keeps_nobody_waiting(time: Time) -> None:
    made = quota(time)
    assert made.admit("p", 1000, always) == 0.0
    assert made.admit("q", 10**9, always) == pytest.approx(10.0)
    assert made.admit("r", 1, always) > 10**6
    time.now_s += 11.0
    assert made.admit("r", 1, always)
    time.now_s += 0.1
    assert made.admit("r", 1, always) == 0.0


def test_who_comes_back_late_has_kept_its_place(time: Time) -> None:
    made = quota(time)
    assert made.admit("p", 1000, always) == 0.0
    for name in ("q", "r", "s"):
        assert made.admit(name, 500, always)
    time.now_s += 60.0
    assert made.admit("s", 500, always) == 0.0
    assert made.admit("r", 500, always) == pytest.approx(5.0)
    assert made.admit("q", 500, always) == pytest.approx(5.0)
    time.now_s += 5.0
    assert made.admit("r", 500, always)
    assert made.admit("q", 500, always) == 0.0


def test_who_may_pass_has_the_time_to_read_its_segment_first(time: Time) -> None:
    made = quota(time)
    assert made.admit("p", 1000, always) == 0.0
    for name in ("q", "r"):
        assert made.seconds_until(name, 500, always)
    time.now_s += 10.0
    assert made.seconds_until("q", 500, always) == 0.0
    time.now_s += 9.0
    assert made.admit("r", 500, always)
    assert made.admit("q", 500, always) == 0.0


def throttled() -> tuple[float, float]:
    name = "sediment_rlm_remote_copy_throttle_seconds"
    read: Callable[[str], float | None] = REGISTRY.get_sample_value
    return read(f"{name}_count") or 0.0, read(f"{name}_sum") or 0.0


def test_only_who_waited_is_told_of_and_for_how_long(time: Time) -> None:
    made, (count, total_s) = quota(time), throttled()
    assert admitted_at(time, made, 50, 350) == about(0.0, 0.0)
    assert throttled() == (count, total_s)
    assert admitted_at(time, made, 1) == about(4.0)
    assert throttled()[0] == count + 1
    assert throttled()[1] == pytest.approx(total_s + 4.0, abs=0.3)
