"""Wait in line for a shared capacity or a shared rate, first come first served."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from threading import Event
from typing import Self

from services.api.errors import RetriableRemoteStorageError, ThrottledError
from services.api.validation import INT64_MAX

POLL_S = 0.1
"""The interval at which a waiting caller's `is_active` is called, s."""

MOST_CHARGED_S = 10.0
"""How long callers may have to wait because of one amount that was charged, s."""

# A wait that is due may be a rounding error away; the waiter must not spin.
_SHORTEST_WAIT_S = 0.001


def _always() -> bool:
    return True


class Slot:
    """A share of a queue's capacity, released by `with` or by `release`, in any thread."""

    __slots__ = ("_queue", "granted", "weight")

    def __init__(self, queue: "FairQueue", weight: int, granted: Event | None = None) -> None:
        self._queue = queue
        self.weight = weight
        # Only a caller that waits needs one.
        self.granted = granted

    def release(self, all_but: int = 0) -> None:
        """Release all but `all_but`; no effect if that is at least the slot's weight."""
        self._queue.shrink(self, all_but)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


class FairQueue:
    """Admit callers while their weights fit the capacity. Thread-safe.

    A caller that weighs more than the capacity gets all of it, alone. A waiting heavy caller blocks
    later ones, so that it is not starved. A caller that stops waiting leaves no trace.

    Args:
        name: the limited resource, for error messages ("concurrent remote reads (limit 8)").
        max_waiters: further callers are refused at once.
        now, wait: a clock, and a wait for an event for at most so many seconds of it.
    """

    def __init__(
        self,
        name: str,
        capacity: int,
        *,
        max_waiters: float = inf,
        now: Callable[[], float] = time.monotonic,
        wait: Callable[[Event, float], object] = Event.wait,
    ) -> None:
        self.capacity = capacity
        self.what = f"too many {name}"
        self._max_waiters = max_waiters
        self._now = now
        self._wait = wait
        self._lock = threading.Lock()
        self._in_use = 0
        self._waiters: deque[Slot] = deque()

    @property
    def waiting(self) -> int:
        """Return the number of waiting callers."""
        return len(self._waiters)

    @property
    def in_use(self) -> int:
        """Return the sum of the weights of all slots."""
        return self._in_use

    @property
    def idle_ratio(self) -> float:
        """Return the free share of the capacity, 0 to 1."""
        return 1 - self._in_use / self.capacity

    def try_acquire(self, weight: int = 1) -> Slot | None:
        """Acquire a share if it is free and no caller waits; return None otherwise."""
        slot = Slot(self, min(weight, self.capacity))
        with self._lock:
            if self._waiters or self._in_use + slot.weight > self.capacity:
                return None
            self._in_use += slot.weight
            return slot

    def acquire(
        self, weight: int = 1, timeout_s: float = inf, is_active: Callable[[], bool] = _always
    ) -> Slot:
        """Wait for a share of the capacity.

        Args:
            is_active: called every POLL_S; an exception ends the wait.

        Raises:
            ThrottledError: too many callers wait already.
            RetriableRemoteStorageError: no share was free in time, or `is_active()` is False.
        """
        free = self.try_acquire(weight)
        if free is not None:
            return free
        granted = Event()
        slot = Slot(self, min(weight, self.capacity), granted)
        with self._lock:
            self._waiters.append(slot)
            self._grant()
            if not granted.is_set() and len(self._waiters) > self._max_waiters:
                self._waiters.remove(slot)
                raise ThrottledError(f"{self.what} and the queue is full; retry in a few seconds")
        try:
            self.wait_until(lambda: 0 if granted.is_set() else inf, granted, timeout_s, is_active)
        except BaseException:
            with self._lock:
                if slot in self._waiters:
                    self._waiters.remove(slot)
                    slot.weight = 0
            slot.release()  # Releases a share granted meanwhile, and unblocks later waiters.
            raise
        return slot

    def shrink(self, slot: Slot, weight: int) -> None:
        """Release what a slot weighs beyond `weight`."""
        with self._lock:
            released = max(slot.weight - weight, 0)
            self._in_use -= released
            slot.weight -= released
            self._grant()

    def wait_until(
        self,
        left_s: Callable[[], float],
        event: Event | None = None,
        timeout_s: float = inf,
        is_active: Callable[[], bool] = _always,
    ) -> None:
        """Wait until `left_s()` is 0, which `event` may announce; raises as `acquire`."""
        event = event or Event()
        due_s = self._now() + timeout_s
        while (wait_s := left_s()) > 0:
            remaining_s = due_s - self._now()
            if remaining_s <= 0:
                text = f"{self.what}: no turn within {timeout_s:g} s; retry in a few seconds"
                raise RetriableRemoteStorageError(text)
            if not is_active():
                raise RetriableRemoteStorageError(f"{self.what}: the caller stopped waiting")
            self._wait(event, min(wait_s, remaining_s, POLL_S))

    def _grant(self) -> None:
        while self._waiters and self._in_use + self._waiters[0].weight <= self.capacity:
            slot = self._waiters.popleft()
            self._in_use += slot.weight
            if slot.granted is not None:
                slot.granted.set()


class TokenBucket:
    """Limit the rate of amounts. Thread-safe.

    An amount of any size passes when the bucket is not in debt; later callers wait until the rate
    has paid the debt. An idle bucket saves up `burst` at most. `name`, `now` and `wait` are those
    of FairQueue.
    """

    def __init__(
        self,
        rate_per_s: float,
        burst: float,
        *,
        name: str = "requests per second",
        now: Callable[[], float] = time.monotonic,
        wait: Callable[[Event, float], object] = Event.wait,
    ) -> None:
        self._queue = FairQueue(name, 1, now=now, wait=wait)
        self._now = now
        self._lock = threading.Lock()
        self._burst_s = burst / rate_per_s
        self._tokens = burst
        self._counted_s = now()
        self.rate_per_s = rate_per_s

    def set_rate(self, rate_per_s: float) -> None:
        """Change the rate, also for waiting callers; the burst keeps its length in seconds."""
        with self._lock:
            self._refill()
            self.rate_per_s = rate_per_s

    def spend(self, amount: float, is_active: Callable[[], bool] = _always) -> None:
        """Wait until `amount` may pass; raises as FairQueue.acquire."""
        with self._queue.acquire(is_active=is_active):
            self._queue.wait_until(lambda: self._spend_or_wait_s(amount), is_active=is_active)

    def try_spend(self, amount: float) -> float:
        """Spend `amount` and return 0, or return the seconds after which to try again."""
        slot = self._queue.try_acquire()
        if slot is None:  # Other callers are in the queue.
            return POLL_S
        with slot:
            return self._spend_or_wait_s(amount)

    def charge(self, amount: float) -> None:
        """Spend `amount` without waiting, but no more than the rate earns in MOST_CHARGED_S.

        For amounts that pass elsewhere: a caller that has to wait for its turn must not be stopped
        for long by them.

        Raises:
            ThrottledError: earlier amounts are not paid yet, or callers wait.
        """
        wait_s = self.try_spend(min(amount, self.rate_per_s * MOST_CHARGED_S))
        if wait_s:
            text = f"{self._queue.what}; retry in {max(1, round(wait_s))} s"
            raise ThrottledError(text)

    def owed_s(self) -> float:
        """Return the seconds until the rate has paid for what was spent; 0 if it has."""
        return self._spend_or_wait_s(0)

    def reserve(self, amount: float) -> tuple[float, float]:
        """Spend `amount`, but no more than the rate earns in MOST_CHARGED_S, at once if at all.

        For amounts that nothing waits for in line: any number of callers may come together.

        Returns:
            What was spent, and 0; or 0, and the seconds after which to try again.
        """
        most = min(amount, self.rate_per_s * MOST_CHARGED_S)
        wait_s = self._spend_or_wait_s(most)
        return (0.0, wait_s) if wait_s else (most, 0.0)

    def spend_at_once(self, amount: float) -> None:
        """Spend `amount` at once; later callers wait until the rate has paid the debt."""
        with self._lock:
            self._refill()
            self._tokens -= amount

    def _spend_or_wait_s(self, amount: float) -> float:
        with self._lock:
            self._refill()
            if self._tokens < 0:
                return max(-self._tokens / self.rate_per_s, _SHORTEST_WAIT_S)
            self._tokens -= amount
            return 0.0

    def _refill(self) -> None:
        now = self._now()
        earned = (now - self._counted_s) * self.rate_per_s
        self._tokens = min(self._tokens + earned, self._burst_s * self.rate_per_s)
        self._counted_s = now


@dataclass(frozen=True, slots=True)
class QuotaLimit:
    """The limit of bytes per second of all that one bucket counts (KIP-956).

    Attributes:
        max_bytes_per_second: INT64_MAX: no limit.
        windows, window_s: the unused rate of so many windows may be used at once.
    """

    max_bytes_per_second: int = INT64_MAX
    windows: int = 11
    window_s: int = 1

    def bucket(self, name: str, now: Callable[[], float] = time.monotonic) -> TokenBucket:
        rate = self.max_bytes_per_second
        return TokenBucket(rate, rate * self.windows * self.window_s, name=name, now=now)
