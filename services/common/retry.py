"""Decide which errors to retry and when, wait, and plan again what has become out of date."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import ldexp
from random import Random
from threading import Event
from typing import TypeVar

from services.api.errors import ConcurrentUpdateError, RetriableRemoteStorageError, ThrottledError

RETRIABLE_ERRORS = (RetriableRemoteStorageError, ThrottledError, ConcurrentUpdateError)

REPLANS = 4
P = TypeVar("P")
T = TypeVar("T")
INTERVAL_S = 0.2
# A round that is later than this shows that this process was stopped, not that peers are late.
_STOPPED_S = 10 * INTERVAL_S


@dataclass(frozen=True, slots=True)
class Backoff:
    """Grow delays exponentially, with jitter so that partitions do not retry together.

    Attributes:
        initial_s, max_s: the first and the longest delay before jitter, seconds.
        jitter: each delay is longer or shorter by up to this share of it; 0 to 0.5.
    """

    initial_s: float = 1.0
    max_s: float = 60.0
    jitter: float = 0.2
    chance: Random = field(default_factory=Random)

    def delay_s(self, failures: int) -> float:
        """Return the delay after so many failures in a row, at least one."""
        # Beyond 2^31 every maximum is reached; much larger powers overflow a float.
        full = min(self.max_s, ldexp(self.initial_s, min(failures - 1, 31)))
        return full * self.chance.uniform(1.0 - self.jitter, 1.0 + self.jitter)


_stop: ContextVar[Event | None] = ContextVar("stop", default=None)
"""Of what runs the task of this thread; None if the end of the process ends its waits."""


class StoppedError(Exception):
    """The work that this task is a part of was stopped."""


@contextmanager
def ended_by(stop: Event) -> Iterator[None]:
    """End each `wait_s` of this thread as soon as `stop` is set, until the block ends."""
    token = _stop.set(stop)
    try:
        yield
    finally:
        _stop.reset(token)


def wait_s(seconds: float) -> None:
    """Wait so many seconds.

    Raises:
        StoppedError: the work was stopped, so that the task must not go on.
    """
    stop = _stop.get()
    if stop is None:
        time.sleep(seconds)
    elif stop.wait(seconds):
        raise StoppedError


def replan(
    act: Callable[[P], T],
    plan_again: Callable[[], P],
    first: P | None = None,
    stale: type[Exception] | tuple[type[Exception], ...] = ConcurrentUpdateError,
) -> T:
    """Act on a plan; if the state that it is based on has changed, plan again, up to REPLANS times.

    This is not a retry: the same plan is never used twice, so there is no pause.

    Args:
        first: the first plan, if the caller has one.
        stale: the errors of `act` that mean that the plan is out of date.

    Raises:
        Exception: the error of the last plan, or any other error of `act` or `plan_again`.
    """
    plan = plan_again() if first is None else first
    for _ in range(REPLANS):
        try:
            return act(plan)
        except stale:
            plan = plan_again()
    return act(plan)


def timely_rounds(
    pause: Callable[[float], bool], clock: Callable[[], float] = time.monotonic
) -> Iterator[float]:
    """Yield the time of each round, s on `clock`, and skip rounds that come late.

    After a late round this process has yet to read the messages that peers sent while it was
    stopped. `pause` waits for so many seconds, and returns True to end the rounds.
    """
    last = clock()
    while not pause(INTERVAL_S):
        now = clock()
        if now - last < _STOPPED_S:
            yield now
        last = clock()
