"""Waiting on a caller's behalf, for no longer than anybody is there to wait for."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Event

from services.api.errors import RetriableRemoteStorageError

_LOOK_EVERY_S = 0.1

_outlasts_close: ContextVar[bool] = ContextVar("outlasts_close", default=False)


@contextmanager
def outlasting_close() -> Iterator[None]:
    """Inside, no close() ends what waits, or hinders it: it must end by a time of its own."""
    before = _outlasts_close.set(True)
    try:
        yield
    finally:
        _outlasts_close.reset(before)


class Waiting:
    """A clock, and pauses that end early. Shared by all calls of a process.

    Tests bring a clock of their own, with pauses that move it.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self._closed = Event()
        self._pause = pause or self._closed.wait
        # Once closed, the one above is over at once.
        self._pause_after_close = pause or time.sleep
        self.now = now

    def until(self, due_s: float, is_wanted: Callable[[], bool]) -> None:
        """Return when `now()` is `due_s` or later. Raises as `out` does."""
        self.out(lambda: due_s - self.now(), is_wanted)

    def out(self, left_s: Callable[[], float], is_wanted: Callable[[], bool]) -> None:
        """Return when nothing is left to wait for, s. It is asked again and again: it may change.

        Raises:
            RetriableRemoteStorageError: before that `is_wanted()` was False, or the service closed.
            Whatever else `is_wanted` raises.
        """
        while (next_s := left_s()) > 0:
            if self.is_closed():
                raise RetriableRemoteStorageError("the service is stopping")
            if not is_wanted():
                raise RetriableRemoteStorageError("gave up waiting for its turn")
            pause = self._pause_after_close if self._closed.is_set() else self._pause
            pause(min(next_s, _LOOK_EVERY_S))

    def close(self) -> None:
        """End all waits, those to come as well, but for those that outlast it."""
        self._closed.set()

    def is_closed(self) -> bool:
        """Whether the service closed, and this thread does not outlast that."""
        return self._closed.is_set() and not _outlasts_close.get()
