"""Run an activity beside a test until the test leaves it."""

from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from types import TracebackType
from typing import Self


class Background(ABC):
    """Runs in a thread of its own while it is entered, once.

    An exception of `run` is raised on leaving.
    """

    def __init__(self) -> None:
        self._ending = Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=type(self).__name__)
        self._running: Future[None] | None = None

    @abstractmethod
    def run(self) -> None:
        """Continue until `wait` returns True."""

    def wait(self, seconds: float) -> bool:
        """Wait so long; return True at once if the activity must end."""
        return self._ending.wait(seconds)

    def __enter__(self) -> Self:
        self._running = self._pool.submit(self.run)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ending.set()
        self._pool.shutdown(wait=True)
        if error is None and self._running is not None:
            self._running.result()
