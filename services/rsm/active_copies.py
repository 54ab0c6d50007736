"""Track the copies that this process runs, and order those that wait for each other."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from threading import Event, Lock

from services.api.calls import current_call
from services.api.errors import RetriableRemoteStorageError
from services.common.fair_queue import POLL_S, FairQueue
from services.rsm.layout import SegmentKeys

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
    """A clock, and pauses that end when the service stops. Shared by all calls of a process.

    Tests bring a clock of their own, with pauses that move it.
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
        """Wait for `event`, for at most so many seconds of the clock."""
        if self._pause is None:
            event.wait(seconds)
        else:
            self._pause(seconds)

    def until(self, due_s: float, is_wanted: Callable[[], bool]) -> None:
        """Return when `now()` is `due_s` or later.

        Raises:
            RetriableRemoteStorageError: before that `is_wanted()` was False, or the service closed.
            Whatever else `is_wanted` raises.
        """
        is_active = self.unless_closed(is_wanted)
        while (left_s := due_s - self.now()) > 0:
            if not is_active():
                raise RetriableRemoteStorageError("the caller stopped waiting")
            # A pause that outlasts close must not end at once.
            ends_early = Event() if self._closed.is_set() else self._closed
            self.wait_for(ends_early, min(left_s, POLL_S))

    def unless_closed(self, is_wanted: Callable[[], bool]) -> Callable[[], bool]:
        """Return `is_wanted`, which raises RetriableRemoteStorageError once the service stops."""

        def is_active() -> bool:
            if self.is_closed():
                raise RetriableRemoteStorageError("the service is stopping; retry elsewhere")
            return is_wanted()

        return is_active

    def close(self) -> None:
        """End all waits, those to come as well, but for those that outlast it."""
        self._closed.set()

    def is_closed(self) -> bool:
        """Return whether the service closed, and this thread does not outlast that."""
        return self._closed.is_set() and not _outlasts_close.get()


# Longer than the store, as a rule, takes for a manifest.
COMMIT_WAIT_S = 60.0


class _Copies:
    """The copies of one segment, and the queue in which they commit."""

    def __init__(self, stem: str, waiting: Waiting) -> None:
        self.count = 0
        name = f"copies of {stem} committing (limit 1)"
        self.commits = FairQueue(name, 1, now=waiting.now, wait=waiting.wait_for)


class ActiveCopies:
    """The copies that this process runs, by segment: a delete could not find what they write."""

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self._lock = Lock()
        self._copies: dict[str, _Copies] = {}

    @contextmanager
    def copying(self, keys: SegmentKeys) -> Iterator[Callable[[], None]]:
        """Count the segment as being copied inside, until the traces of a failed copy are removed.

        Yields a function that waits for the turn to put the manifest. The turn lasts to the end of
        the block, until it is known whether the manifest counts and the rest is removed: so no copy
        relies on a manifest whose own copy gives up on it. The function raises
        RetriableRemoteStorageError if the caller gives up, the service stops, or no turn comes
        within COMMIT_WAIT_S.
        """
        with self._lock:
            copies = self._copies.setdefault(keys.stem, _Copies(keys.stem, self._waiting))
            copies.count += 1
        turn = ExitStack()

        def wait_for_turn() -> None:
            is_active = self._waiting.unless_closed(current_call().is_active)
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
        """Raise RetriableRemoteStorageError if the segment is being copied by this process."""
        with self._lock:
            is_copied = keys.stem in self._copies
        if is_copied:
            raise RetriableRemoteStorageError(f"{keys.stem} is being copied now")
