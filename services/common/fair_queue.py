"""Wait in line for something that many share."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from services.api.errors import RetriableRemoteStorageError


class ReaderTurns:
    """Thread-safe.

    Args:
        wait_s: how long one waits for its turn, seconds.
    """

    def __init__(self, readers: int, wait_s: float) -> None:
        self._readers = readers
        self._wait_s = wait_s
        self._changed = threading.Condition()
        self._reading = 0
        self._waiting = 0

    @property
    def waiting(self) -> int:
        return self._waiting

    @property
    def idle_ratio(self) -> float:
        """Of the readers, now."""
        return 1 - self._reading / self._readers

    @contextmanager
    def turn(self) -> Iterator[None]:
        """
        Raises:
            RetriableRemoteStorageError: none came in time.
        """
        self._take()
        try:
            yield
        finally:
            with self._changed:
                self._reading -= 1
                self._changed.notify()

    def _take(self) -> None:
        with self._changed:
            self._waiting += 1
            try:
                is_free = self._changed.wait_for(self._is_free, self._wait_s)
            finally:
                self._waiting -= 1
            if not is_free:
                raise RetriableRemoteStorageError(f"{self._readers} remote reads are under way")
            self._reading += 1

    def _is_free(self) -> bool:
        return self._reading < self._readers
