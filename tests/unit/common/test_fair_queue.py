"""Test that callers of a shared capacity or rate are served in the order of arrival."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from threading import Event

import pytest

from services.api.errors import RetriableRemoteStorageError, ThrottledError
from services.common.fair_queue import MOST_CHARGED_S, FairQueue, Slot, TokenBucket
from tests.harness.eventually import eventually


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(20) as made:
        yield made


class Clock:
    """A clock that advances only while a caller waits."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def now(self) -> float:
        return self.now_s

    def wait(self, event: Event, seconds: float) -> bool:
        self.now_s += seconds
        return event.is_set()


class InLine:
    """Callers of one queue; each is known to wait before the next one comes."""

    def __init__(self, queue: FairQueue, pool: ThreadPoolExecutor) -> None:
        self._queue = queue
        self._pool = pool
        self.order: list[str] = []

    def come(
        self, name: str, weight: int = 1, is_active: Callable[[], bool] = lambda: True
    ) -> Future[Slot]:
        before = self._queue.waiting
        future = self._pool.submit(self._acquire, name, weight, is_active)
        eventually(lambda: self._queue.waiting > before)
        return future

    def _acquire(self, name: str, weight: int, is_active: Callable[[], bool]) -> Slot:
        slot = self._queue.acquire(weight, 60.0, is_active)
        self.order.append(name)
        return slot


def test_a_free_share_is_given_at_once() -> None:
    queue = FairQueue("reads", 2)
    with queue.acquire(timeout_s=0), queue.acquire(timeout_s=0):
        assert queue.idle_ratio == 0.0
        assert queue.try_acquire() is None
    assert queue.idle_ratio == 1.0


def test_callers_are_let_in_in_the_order_of_arrival(pool: ThreadPoolExecutor) -> None:
    queue = FairQueue("reads", 1)
    line, first = InLine(queue, pool), queue.acquire()
    futures = [line.come(name) for name in "abcde"]
    slot = first
    for future in futures:
        slot.release()
        slot = future.result(60)
    assert line.order == list("abcde")


def test_a_heavy_caller_is_not_passed_by_light_ones(pool: ThreadPoolExecutor) -> None:
    queue = FairQueue("segments", 10)
    line, first = InLine(queue, pool), queue.acquire(4)
    heavy, light = line.come("heavy", 8), line.come("light", 1)
    assert queue.try_acquire(1) is None
    first.release()
    with heavy.result(60), light.result(60):
        assert queue.try_acquire(2) is None
        assert queue.try_acquire(1) is not None


def test_a_caller_heavier_than_the_capacity_gets_all_of_it(pool: ThreadPoolExecutor) -> None:
    queue = FairQueue("segments", 10)
    first = queue.acquire(1)
    heavy = InLine(queue, pool).come("heavy", 50)
    first.release()
    with heavy.result(60) as slot:
        assert (slot.weight, queue.idle_ratio) == (10, 0.0)
    assert queue.idle_ratio == 1.0


def test_a_part_that_is_given_back_lets_the_next_one_in(pool: ThreadPoolExecutor) -> None:
    queue = FairQueue("segments", 10)
    slot = queue.acquire(10)
    second = InLine(queue, pool).come("second", 4)
    slot.release(all_but=6)
    second.result(60).release()
    slot.release(all_but=8)
    assert queue.idle_ratio == pytest.approx(0.4)


def test_a_share_is_given_back_once(pool: ThreadPoolExecutor) -> None:
    queue = FairQueue("reads", 2)
    with queue.acquire() as slot:
        slot.release()
        slot.release()
    assert queue.idle_ratio == 1.0


def test_no_share_in_time_is_an_error_that_names_the_limit() -> None:
    clock = Clock()
    queue = FairQueue("concurrent reads (limit 1)", 1, now=clock.now, wait=clock.wait)
    with queue.acquire():
        text = r"^too many concurrent reads \(limit 1\): no turn within 5 s; retry in a few seconds"
        with pytest.raises(RetriableRemoteStorageError, match=text):
            queue.acquire(timeout_s=5.0)
        assert clock.now_s == pytest.approx(1005.0)
        assert queue.waiting == 0


def test_a_full_queue_refuses_at_once(pool: ThreadPoolExecutor) -> None:
    queue = FairQueue("concurrent reads (limit 1)", 1, max_waiters=1)
    first = queue.acquire()
    second = InLine(queue, pool).come("second")
    with pytest.raises(ThrottledError, match=r"limit 1\) and the queue is full; retry"):
        queue.acquire()
    assert queue.waiting == 1
    first.release()
    second.result(60).release()
    queue.acquire(timeout_s=0).release()


def test_a_queue_without_waiters_still_serves() -> None:
    queue = FairQueue("reads", 1, max_waiters=0)
    with queue.acquire(), pytest.raises(ThrottledError):
        queue.acquire()
    queue.acquire().release()


def test_a_caller_that_stops_waiting_lets_those_behind_it_pass(pool: ThreadPoolExecutor) -> None:
    queue = FairQueue("segments", 10)
    line, wants, first = InLine(queue, pool), Event(), queue.acquire(4)
    wants.set()
    heavy, light = line.come("heavy", 8, wants.is_set), line.come("light", 1)
    wants.clear()
    with pytest.raises(RetriableRemoteStorageError, match="the caller stopped waiting"):
        heavy.result(60)
    light.result(60).release()
    first.release()
    assert (queue.waiting, queue.idle_ratio) == (0, 1.0)


def test_error_raised_by_is_active_ends_the_wait() -> None:
    def is_active() -> bool:
        raise ThrottledError("closing")

    queue = FairQueue("reads", 1)
    with queue.acquire():
        with pytest.raises(ThrottledError, match="closing"):
            queue.acquire(is_active=is_active)
        assert queue.waiting == 0
    assert queue.idle_ratio == 1.0


def test_a_share_granted_to_a_caller_that_gives_up_at_that_moment_is_not_lost() -> None:
    queue = FairQueue("reads", 1)
    slot = queue.acquire()

    def is_active() -> bool:
        slot.release()  # grants the share to the caller that is being asked
        return False

    with pytest.raises(RetriableRemoteStorageError):
        queue.acquire(is_active=is_active)
    assert (queue.waiting, queue.idle_ratio) == (0, 1.0)


def test_many_threads_never_exceed_the_capacity(pool: ThreadPoolExecutor) -> None:
    queue, lock = FairQueue("reads", 7), threading.Lock()
    in_use = most = 0

    def work(number: int) -> None:
        nonlocal in_use, most
        for turn in range(50):
            weight = 1 + (number + turn) % 4
            with queue.acquire(weight, 60.0):
                with lock:
                    in_use += weight
                    most = max(most, in_use)
                with lock:
                    in_use -= weight

    for done in [pool.submit(work, number) for number in range(20)]:
        done.result(120)
    assert most <= 7
    assert (queue.waiting, queue.idle_ratio) == (0, 1.0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def bucket(clock: Clock, rate_per_s: float, burst: float = 0) -> TokenBucket:
    return TokenBucket(rate_per_s, burst, now=clock.now, wait=clock.wait)


def test_amounts_pass_at_the_rate(clock: Clock) -> None:
    limit, times = bucket(clock, 10.0), []
    for _ in range(100):
        limit.spend(1)
        times.append(clock.now_s)
    assert [b - a for a, b in pairwise(times)] == pytest.approx([0.1] * 99, abs=0.002)


def test_an_idle_bucket_saves_up_its_burst_and_no_more(clock: Clock) -> None:
    limit = bucket(clock, 10.0, burst=5)
    clock.now_s += 3600
    for _ in range(6):
        limit.spend(1)
    assert clock.now_s == 4600.0
    limit.spend(1)
    assert clock.now_s == pytest.approx(4600.1, abs=0.002)


def test_an_amount_of_any_size_passes_and_is_made_up_for(clock: Clock) -> None:
    limit = bucket(clock, 10.0)
    limit.spend(1000)
    assert clock.now_s == 1000.0
    limit.spend(1)
    assert clock.now_s == pytest.approx(1100.0, abs=0.2)


def test_a_caller_that_stops_waiting_takes_nothing(clock: Clock) -> None:
    limit = bucket(clock, 1.0)
    limit.spend(1)
    for _ in range(4):
        with pytest.raises(RetriableRemoteStorageError, match="the caller stopped waiting"):
            limit.spend(1000, is_active=lambda: False)
    clock.now_s += 1
    assert limit.try_spend(1) == 0.0


def test_another_rate_holds_for_callers_that_wait(clock: Clock) -> None:
    limit = bucket(clock, 1.0)
    limit.spend(1000)

    def is_active() -> bool:
        if clock.now_s >= 1005.0:
            limit.set_rate(1000.0)
        return True

    limit.spend(1, is_active)
    assert clock.now_s == pytest.approx(1006.0, abs=0.2)
    assert limit.rate_per_s == 1000.0


def test_refused_take_passes_after_the_wait_that_the_bucket_returned(clock: Clock) -> None:
    limit = bucket(clock, 10.0)
    assert limit.try_spend(20) == 0.0
    wait_s = limit.try_spend(1)
    assert wait_s == pytest.approx(2.0)
    clock.now_s += wait_s
    assert limit.try_spend(1) == 0.0


def test_a_forced_amount_is_made_up_for_by_later_callers(clock: Clock) -> None:
    limit = bucket(clock, 10.0)
    limit.spend_at_once(20)
    assert clock.now_s == 1000.0
    limit.spend(1)
    assert clock.now_s == pytest.approx(1002.0, abs=0.2)


def test_a_charge_is_paid_by_later_callers_and_is_refused_while_one_is_unpaid(clock: Clock) -> None:
    limit = bucket(clock, 10.0)
    limit.charge(20)
    with pytest.raises(ThrottledError, match=r"too many requests per second; retry in 2 s"):
        limit.charge(20)
    assert clock.now_s == 1000.0
    limit.spend(1)
    assert clock.now_s == pytest.approx(1002.0, abs=0.2)


def test_a_charge_stops_others_for_a_bounded_time(clock: Clock) -> None:
    limit = bucket(clock, 10.0)
    limit.charge(1_000_000)
    limit.spend(1)
    assert clock.now_s == pytest.approx(1000.0 + MOST_CHARGED_S, abs=0.2)


def test_amounts_of_many_threads_pass_in_order_and_are_all_counted(
    pool: ThreadPoolExecutor,
) -> None:
    limit = TokenBucket(1_000_000.0, 0)
    for done in [pool.submit(limit.spend, 100) for _ in range(500)]:
        done.result(60)
    assert 0 <= limit.try_spend(1) <= 0.05


def test_try_spend_does_not_overtake_a_waiter(pool: ThreadPoolExecutor) -> None:
    limit, asked = TokenBucket(1.0, 0), Event()
    limit.spend(3600)
    wanted = True

    def is_active() -> bool:
        asked.set()
        return wanted

    waiter = pool.submit(limit.spend, 1, is_active)
    assert asked.wait(60)
    assert limit.try_spend(1) > 0
    wanted = False
    with pytest.raises(RetriableRemoteStorageError):
        waiter.result(60)
