"""Wait with a deadline for a condition, and run an activity beside a test."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from types import TracebackType
from typing import Self, TypeVar

from services.rlmm.database.engine import DatabaseLimits

T = TypeVar("T")

DEFAULT_DEADLINE_MS = 60_000
"""On a shared machine a process is sometimes paused for some seconds."""


def eventually(
    check: Callable[[], T], deadline_ms: int = DEFAULT_DEADLINE_MS, poll_ms: int = 20
) -> T:
    """Call `check` until it returns a truthy value, and return that value.

    An AssertionError of `check` counts as "not yet"; any other exception passes at once. For checks
    that only assert, see `eventually_holds`.

    Raises:
        AssertionError: the deadline passed; the last failure of `check` itself if it raised.
    """
    deadline = time.monotonic() + deadline_ms / 1000
    while True:
        try:
            result = check()
            if result:
                return result
            failure = AssertionError(f"still {result!r} after {deadline_ms} ms")
        except AssertionError as e:
            failure = e
        if time.monotonic() >= deadline:
            raise failure
        Event().wait(poll_ms / 1000)


def eventually_holds(
    check: Callable[[], None], deadline_ms: int = DEFAULT_DEADLINE_MS, poll_ms: int = 20
) -> None:
    """Call `check` until it stops raising AssertionError; see `eventually`."""

    def held() -> bool:
        check()
        return True

    eventually(held, deadline_ms, poll_ms)


PATIENCE_MS = 60_000
"""A test may hold a lock, and others may wait for it, for as long as a busy machine needs."""

PATIENT = DatabaseLimits(
    pool_timeout_ms=PATIENCE_MS,
    connect_timeout_ms=PATIENCE_MS,
    statement_timeout_ms=PATIENCE_MS,
    lock_timeout_ms=PATIENCE_MS,
    idle_in_transaction_timeout_ms=PATIENCE_MS,
)


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
