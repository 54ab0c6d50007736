"""Let tasks wait: for their share of a rate, and for a service; until their engine stops."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Event

_stop: ContextVar[Event | None] = ContextVar("stop", default=None)
"""Of the engine that runs the task of this thread; Spark stops by ending the task's process."""


class StoppedError(Exception):
    """Another task failed, or the sweep was stopped."""


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
        StoppedError: the engine stops, so that the task must not go on.
    """
    stop = _stop.get()
    if stop is None:
        time.sleep(seconds)
    elif stop.wait(seconds):
        raise StoppedError
