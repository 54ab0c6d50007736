"""Waiting on a caller's behalf, for no longer than anybody is there to wait for."""

import time
from collections.abc import Callable
from threading import Event

from services.api.errors import RetriableRemoteStorageError

_LOOK_EVERY_S = 0.1


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
        self.now = now

    def until(self, due_s: float, is_wanted: Callable[[], bool]) -> None:
        """Return when `now()` is `due_s` or later. Raises as `out` does."""
        self.out(lambda: due_s - self.now(), is_wanted)

    def out(self, left_s: Callable[[], float], is_wanted: Callable[[], bool]) -> None:
        """Return when nothing is left to wait for, s. It is asked again and again: it may change.

        Raises:
            RetriableRemoteStorageError: before that `is_wanted()` was False, or the service closed.
        """
        while (next_s := left_s()) > 0:
            if self.is_closed():
                raise RetriableRemoteStorageError("the service is stopping")
            if not is_wanted():
                raise RetriableRemoteStorageError("gave up waiting for its turn")
            self._pause(min(next_s, _LOOK_EVERY_S))

    def close(self) -> None:
        """End all waits, those to come as well."""
        self._closed.set()

    def is_closed(self) -> bool:
        return self._closed.is_set()
