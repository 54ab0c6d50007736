"""Track the copies of this process, and order their commits."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from threading import Event, Lock

from services.api.calls import current_call
from services.api.errors import RetriableRemoteStorageError
from services.common.fair_queue import POLL_S, FairQueue
from services.rsm.layout import SegmentKeys

# Usually longer than the store takes for a manifest.
COMMIT_WAIT_S = 60.0

_outlasts_close: ContextVar[bool] = ContextVar("outlasts_close", default=False)


@contextmanager
def outlasting_close() -> Iterator[None]:
    """Let waits inside outlast close(); they must end by a deadline of their own."""
    before = _outlasts_close.set(True)
    try:
        yield
    finally:
        _outlasts_close.reset(before)


class Waiter:
    """A clock, and pauses that end when the service stops. Shared by all calls of a process.

    Tests pass their own clock, with pauses that advance it.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self._closed = Event()
        self._pause = pause
        self.now = now

    def wait_for(self, event: Event, seconds: float) -> None:
        """Wait for `event`, for at most `seconds` of the clock."""
        if self._pause is None:
            event.wait(seconds)
        else:
            self._pause(seconds)

    def until(self, due_s: float, is_wanted: Callable[[], bool]) -> None:
        """Return when `now()` is `due_s` or later.

        Raises:
            RetriableRemoteStorageError: `is_wanted()` was False before that, or the service closed.
            Exception: any other error of `is_wanted`.
        """
        is_active = self.unless_closed(is_wanted)
        while (left_s := due_s - self.now()) > 0:
            if not is_active():
                raise RetriableRemoteStorageError("the caller stopped waiting")
            # A pause that outlasts close must not end at once.
            ends_early = Event() if self._closed.is_set() else self._closed
            self.wait_for(ends_early, min(left_s, POLL_S))

    def unless_closed(self, is_wanted: Callable[[], bool]) -> Callable[[], bool]:
        """Return `is_wanted` that raises RetriableRemoteStorageError after the service stops."""

        def is_active() -> bool:
            if self.is_closed():
                raise RetriableRemoteStorageError("the service is stopping; retry elsewhere")
            return is_wanted()

        return is_active

    def close(self) -> None:
        """End all current and later waits, except those that outlast close."""
        self._closed.set()

    def is_closed(self) -> bool:
        """Return whether the service closed and this thread does not outlast that."""
        return self._closed.is_set() and not _outlasts_close.get()


class _Copies:
    """The copies of one segment, and the queue in which they commit."""

    def __init__(self, stem: str, waiter: Waiter) -> None:
        self.count = 0
        name = f"copies of {stem} committing (limit 1)"
        self.commits = FairQueue(name, 1, now=waiter.now, wait=waiter.wait_for)


class ActiveCopies:
    """The copies of this process, by segment. A delete could not find the objects they write."""

    def __init__(self, waiter: Waiter) -> None:
        self._waiter = waiter
        self._lock = Lock()
        self._copies: dict[str, _Copies] = {}

    @contextmanager
    def copying(self, keys: SegmentKeys) -> Iterator[Callable[[], None]]:
        """Count the segment as being copied, until a failed copy is cleaned up.

        Yields a function that waits for the turn to put the manifest. The turn lasts to the end of
        the block, when the manifest is known to count or not, and the rest is deleted. So no copy
        relies on a manifest whose own copy abandons it. The function raises
        RetriableRemoteStorageError if the caller gives up, the service stops, or no turn comes
        within COMMIT_WAIT_S.
        """
        with self._lock:
            copies = self._copies.setdefault(keys.stem, _Copies(keys.stem, self._waiter))
            copies.count += 1
        turn = ExitStack()

        def wait_for_turn() -> None:
            is_active = self._waiter.unless_closed(current_call().is_active)
            turn.enter_context(copies.commits.acquire(1, COMMIT_WAIT_S, is_active))

        try:
            with turn:
                yield wait_for_turn
        finally:
            with self._lock:
                copies.count -= 1
                if not copies.count:
                    del self._copies[keys.stem]

    def require_none(self, keys: SegmentKeys) -> None:
        """Raise RetriableRemoteStorageError if this process is copying the segment."""
        with self._lock:
            is_copied = keys.stem in self._copies
        if is_copied:
            raise RetriableRemoteStorageError(
                f"{keys.stem} is being copied; retry when that copy has ended"
            )
