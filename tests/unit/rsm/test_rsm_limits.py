"""Test the rates of a process, on a clock that only pauses move."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Condition, Event

import pytest

from services.api.calls import Call, serving
from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.rsm.active_copies import Waiter, outlasting_close
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.deadline import BURST_S, ByteRate
from services.rsm.delete import DeletePace, ObjectDeletes
from tests.harness.clocks import Clock

MIB = 1024 * 1024


def mebibytes(count: int) -> Iterator[bytes]:
    chunk = bytes(MIB)
    return (chunk for _ in range(count))


class SharedClock:
    """Moves to the next moment that somebody waits for, once all callers wait."""

    def __init__(self, callers: int) -> None:
        self.now_s = 1000.0
        self.waiter = Waiter(lambda: self.now_s, self._pause)
        self._callers = callers
        self._due_s: list[float] = []
        self._moved = Condition()

    def run(self, call: Callable[[int], None]) -> None:
        """`call` in a thread of each caller."""
        with ThreadPoolExecutor(self._callers) as pool:
            for done in [pool.submit(self._run, call, n) for n in range(self._callers)]:
                done.result(300)

    def _run(self, call: Callable[[int], None], number: int) -> None:
        try:
            call(number)
        finally:
            with self._moved:
                self._callers -= 1
                self._move()

    def _pause(self, seconds: float) -> None:
        with self._moved:
            due_s = self.now_s + seconds
            self._due_s.append(due_s)
            self._move()
            self._moved.wait_for(lambda: self.now_s >= due_s)

    def _move(self) -> None:
        if self._due_s and len(self._due_s) >= self._callers:
            self.now_s = min(self._due_s)
            # Who is due runs again, and not until it waits again does the clock go on.
            self._due_s = [due_s for due_s in self._due_s if due_s > self.now_s]
            self._moved.notify_all()


def test_a_stream_of_a_gibibyte_at_10_mib_a_second_takes_100_seconds(clock: Clock) -> None:
    began_s = clock.now_s
    for _ in ByteRate(10 * MIB, clock.waiter).limited(mebibytes(1024)):
        pass
    assert clock.now_s - began_s == pytest.approx(102.4, abs=0.5)


def test_a_stream_is_as_fast_in_its_middle_as_at_its_ends(clock: Clock) -> None:
    times = []
    for _ in ByteRate(10 * MIB, clock.waiter).limited(mebibytes(100)):
        times.append(clock.now_s)
    gaps = [after - before for before, after in pairwise(times)]
    assert max(gaps) == pytest.approx(0.1, abs=0.01)


def test_unused_rate_is_saved_only_briefly(clock: Clock) -> None:
    rate = ByteRate(10 * MIB, clock.waiter)
    clock.move(3600)
    began_s = clock.now_s
    for _ in rate.limited(mebibytes(100)):
        pass
    assert clock.now_s - began_s >= 99 / 10 - BURST_S - 0.01


def test_a_short_stream_takes_turns_with_a_long_one(clock: Clock) -> None:
    rate = ByteRate(MIB, clock.waiter)
    long, short = iter(rate.limited(mebibytes(1000))), iter(rate.limited(mebibytes(3)))
    began_s = clock.now_s
    for _ in range(3):
        next(long)
        next(short)
    assert clock.now_s - began_s == pytest.approx(5, abs=0.2)


def test_no_rate_is_no_wrapper(clock: Clock) -> None:
    chunks = mebibytes(1)
    assert ByteRate(0, clock.waiter).limited(chunks) is chunks


def test_closing_a_limited_stream_closes_its_source(clock: Clock) -> None:
    closed = Event()

    def chunks() -> Iterator[bytes]:
        try:
            yield from mebibytes(2)
        finally:
            closed.set()

    source = chunks()
    limited = ByteRate(MIB, clock.waiter).limited(source)
    next(limited)
    assert isinstance(limited, Generator)
    limited.close()
    assert closed.is_set()


def test_cancelled_call_stops_waiting_for_its_rate(clock: Clock) -> None:
    stream = ByteRate(1, clock.waiter).limited(mebibytes(2))
    next(stream)
    began_s = clock.now_s
    gone = Call("actor", "id", is_active=lambda: clock.now_s < began_s + 5)
    with serving(gone), pytest.raises(RetriableRemoteStorageError, match=r"limit 1\).*stopped"):
        next(stream)
    assert clock.now_s - began_s < 6


def test_a_service_that_stops_ends_every_wait() -> None:
    waiter = Waiter()
    stream = ByteRate(1, waiter).limited(mebibytes(2))
    next(stream)
    asked = Event()

    def is_active() -> bool:
        asked.set()
        return True

    def read_on() -> None:
        with serving(Call("actor", "id", is_active=is_active)):
            next(stream)

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_on)
        assert asked.wait(60)
        waiter.close()
        with pytest.raises(RetriableRemoteStorageError, match="stopping"):
            reading.result(60)


def test_deletes_never_go_above_the_limit(clock: Clock) -> None:
    pace = DeletePace(3500, clock.waiter)
    began_s = clock.now_s
    for _ in range(70):
        pace.acquire(1000, lambda: True)
        pace.speed_up()
    assert 70_000 / (clock.now_s - began_s) < 3500 * 1.05


def test_rate_halves_while_the_store_is_overloaded_and_recovers(clock: Clock) -> None:
    pace = DeletePace(3200, clock.waiter)
    pace.slow_down(pace.acquire(1, lambda: True))
    assert pace.keys_per_s == 1600
    for _ in range(6):
        pace.speed_up()
    assert pace.keys_per_s == pytest.approx(3200)


def test_the_pace_never_comes_to_a_halt(clock: Clock) -> None:
    pace = DeletePace(6400, clock.waiter)
    for _ in range(100):
        pace.slow_down(pace.acquire(1, lambda: True))
    assert pace.keys_per_s == 100


def test_requests_that_failed_together_halve_the_pace_once(clock: Clock) -> None:
    pace = DeletePace(3200, clock.waiter)
    began = [pace.acquire(1, lambda: True) for _ in range(10)]
    clock.move(1)
    for began_s in began:
        pace.slow_down(began_s)
    assert pace.keys_per_s == 1600


class BusyStore(FilesystemStorage):
    """Has no time for some of the keys, as often as a test says."""

    def __init__(self, busy: Callable[[Sequence[str]], Mapping[str, RemoteStorageError]]) -> None:
        self._busy = busy
        self.asked: list[list[str]] = []

    def delete(self, keys: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        self.asked.append(list(keys))
        return self._busy(keys)


def deletes(clock: Clock, retries: int = 3, rate: int = 3500) -> ObjectDeletes:
    return ObjectDeletes(DeletePace(rate, clock.waiter), retries, clock.waiter)


def busy(keys: Sequence[str]) -> Mapping[str, RemoteStorageError]:
    return dict.fromkeys(keys, RetriableRemoteStorageError("SlowDown"))


def test_only_keys_that_failed_for_the_moment_are_deleted_again(clock: Clock) -> None:
    answers = iter(
        [
            {"b": RetriableRemoteStorageError("SlowDown"), "c": RemoteStorageError("denied")},
            {},
        ]
    )
    store = BusyStore(lambda keys: next(answers))
    failures = deletes(clock).delete(store, ["a", "b", "c"])
    assert store.asked == [["a", "b", "c"], ["b"]]
    assert list(failures) == ["c"]


def test_a_store_that_stays_busy_is_asked_a_bounded_number_of_times(clock: Clock) -> None:
    store = BusyStore(busy)
    began_s = clock.now_s
    failures = deletes(clock, retries=3).delete(store, ["a", "b"])
    assert len(store.asked) == 4
    assert set(failures) == {"a", "b"}
    # Pauses of 0.2, 0.4 and 0.8 s, each longer or shorter by up to a fifth.
    assert 1.12 <= clock.now_s - began_s <= 1.7


def test_keys_of_a_cancelled_call_are_not_retried(clock: Clock) -> None:
    store = BusyStore(busy)
    with serving(Call("actor", "id", is_active=lambda: not store.asked)):
        failures = deletes(clock).delete(store, ["a"])
    assert len(store.asked) == 1
    assert "SlowDown" in str(failures["a"])


@pytest.mark.deep
def test_pace_recovers_after_a_long_overload_of_the_store() -> None:
    """Eight callers, of which each waits for half a minute and asks again."""
    clock = SharedClock(callers=8)
    began_s = clock.now_s
    pace = DeletePace(3500, clock.waiter)
    all_deletes = ObjectDeletes(pace, 3, clock.waiter)
    store = BusyStore(lambda keys: busy(keys) if clock.now_s < began_s + 300 else {})
    paces: list[float] = []

    def delete_for_half_a_minute() -> None:
        end_s = clock.now_s + 30
        with serving(Call("actor", "id", is_active=lambda: clock.now_s < end_s)):
            all_deletes.delete(store, ["key"] * 1000)

    def call_again_and_again(number: int) -> None:
        del number
        while clock.now_s < began_s + 400:
            delete_for_half_a_minute()
            if clock.now_s < began_s + 300:
                paces.append(pace.keys_per_s)

    clock.run(call_again_and_again)
    assert min(paces) == 3500 / 64
    assert pace.keys_per_s == 3500


def test_a_clean_up_waits_for_no_turn_and_the_others_make_up_for_it(clock: Clock) -> None:
    store = BusyStore(lambda keys: {})
    slow = deletes(clock, rate=1)
    slow.delete(store, ["a"] * 100)
    began_s = clock.now_s
    assert not slow.clean_up(store, ["b", "c"])
    assert clock.now_s == began_s
    slow.delete(store, ["d"])
    assert clock.now_s - began_s == pytest.approx(102, abs=0.5)


def test_a_clean_up_pauses_before_it_asks_again_though_the_service_stops(clock: Clock) -> None:
    answers = iter([busy(["a"]), busy(["a"]), {}])
    store = BusyStore(lambda keys: next(answers))
    clock.waiter.close()
    began_s = clock.now_s
    assert not deletes(clock).clean_up(store, ["a"])
    # Pauses of 0.2 and 0.4 s, each longer or shorter by up to a fifth.
    assert 0.48 <= clock.now_s - began_s <= 0.73


def test_a_clean_up_of_a_service_that_stops_ends_by_its_own_time(clock: Clock) -> None:
    store = BusyStore(busy)
    clock.waiter.close()
    began_s = clock.now_s
    assert list(deletes(clock, retries=100).clean_up(store, ["a"])) == ["a"]
    assert clock.now_s - began_s == pytest.approx(10, abs=0.5)


def test_pauses_that_outlast_the_end_of_the_service_take_their_time() -> None:
    waiter = Waiter()
    waiter.close()
    due_s = waiter.now() + 0.25
    times_looked = 0

    def is_wanted() -> bool:
        nonlocal times_looked
        times_looked += 1
        return True

    with outlasting_close():
        waiter.until(due_s, is_wanted)
    assert waiter.now() >= due_s
    assert times_looked <= 4


def test_keys_throttled_past_their_call_are_not_deleted(clock: Clock) -> None:
    store = BusyStore(lambda keys: {})
    slow = deletes(clock, rate=1)
    slow.delete(store, ["a"] * 1000)
    with serving(Call("actor", "id", is_active=lambda: False)):
        failures = slow.delete(store, ["b"])
    assert isinstance(failures["b"], RetriableRemoteStorageError)
    assert len(store.asked) == 1
