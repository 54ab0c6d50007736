"""Track the copies that this process runs, and order those that wait for each other."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from threading import Condition, Event, Lock
from typing import Self

from services.api.calls import current_call
from services.api.errors import RetriableRemoteStorageError
from services.rsm.layout import SegmentKeys

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


@dataclass(eq=False, slots=True)
class Ticket:
    """A place in the queue; `passed`: its turn has come, and what it asked for is taken."""

    amount: int
    passed: bool = False


class Turns:
    """The queue of those who wait. Who gives up leaves it, as if it had never asked.

    `changed` guards the queue and what it is for; held by the caller of all but `ticket`.
    """

    def __init__(self) -> None:
        self.changed = Condition()
        self._queue: deque[Ticket] = deque()

    @contextmanager
    def ticket(self, amount: int = 1) -> Iterator[Ticket]:
        """The last place in the queue, to be waited on inside."""
        ticket = Ticket(amount)
        with self.changed:
            self._queue.append(ticket)
        try:
            yield ticket
        finally:
            with self.changed:
                if not ticket.passed:
                    self._queue.remove(ticket)
                self.changed.notify_all()

    def is_first(self, ticket: Ticket) -> bool:
        return bool(self._queue) and self._queue[0] is ticket

    def is_empty(self) -> bool:
        return not self._queue

    def pass_first(self) -> Ticket:
        """The turn of the first has come: it leaves the queue, which must not be empty."""
        ticket = self._queue.popleft()
        ticket.passed = True
        return ticket

    def amount_before(self, ticket: Ticket) -> int:
        """What is asked for by those whose turns come first."""
        return sum(other.amount for other in islice(self._queue, self._queue.index(ticket)))


# Longer than the store, as a rule, takes for a manifest.
COMMIT_WAIT_S = 60.0


@dataclass
class _Copies:
    """Of one segment: how many there are, and the lock that they commit under."""

    count: int = 0
    committing: Lock = field(default_factory=Lock)


class CopiesUnderWay:
    """Shared by copies and deletes: what a copy is still to write no delete could find."""

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self._lock = Lock()
        self._copies: dict[str, _Copies] = {}

    @contextmanager
    def copying(self, keys: SegmentKeys) -> Iterator["CommitTurn"]:
        """Inside, and until what a failed copy wrote is removed, the segment is being copied.

        Gives the turn to take before the manifest is put, which lasts to the end of the block:
        until it is known whether the manifest counts, and what does not is removed. So no copy
        takes another's manifest for one that counts while that one gives up on it.
        """
        with self._lock:
            copies = self._copies.setdefault(keys.stem, _Copies())
            copies.count += 1
        try:
            with CommitTurn(keys.stem, copies.committing, self._waiting) as turn:
                yield turn
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


class CommitTurn:
    """Of one copy: whether it is its turn to commit. Leaving `with` ends the turn, if it came."""

    def __init__(self, stem: str, committing: Lock, waiting: Waiting) -> None:
        self._stem = stem
        self._committing = committing
        self._waiting = waiting
        self._came = False

    def wait(self) -> None:
        """Return when no other copy of the segment commits.

        Raises:
            RetriableRemoteStorageError: the caller gave up, the service stops, or another copy has
                not ended for COMMIT_WAIT_S.
        """
        end_s, is_active = self._waiting.now() + COMMIT_WAIT_S, current_call().is_active

        def is_wanted() -> bool:
            if self._waiting.now() >= end_s:
                text = f"another copy of {self._stem} has not ended for {COMMIT_WAIT_S:.0f} s"
                raise RetriableRemoteStorageError(text)
            return is_active()

        self._waiting.out(self._left_s, is_wanted)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._came:
            self._committing.release()

    def _left_s(self) -> float:
        self._came = self._committing.acquire(blocking=False)
        return 0 if self._came else inf
