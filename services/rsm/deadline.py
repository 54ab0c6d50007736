"""Bound work by the caller's deadline and by rates that all calls of a process share."""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from math import inf
from typing import TypeVar

from services.api.calls import current_call, serving
from services.api.errors import RetriableRemoteStorageError
from services.rsm.active_copies import Ticket, Turns, Waiting, outlasting_close

Piece = TypeVar("Piece", bytes, bytes | memoryview)
BURST_S = 0.1

# A turn that is due may be a rounding away; who waits for it must not spin.
_SHORTEST_PAUSE_S = 0.001


class RateLimit:
    """Lets bytes, or whatever is counted, pass at a rate. Thread-safe.

    Who asks queues up, and takes when its turn comes; who gives up leaves the queue, as if it had
    never asked. So calls that ask for a chunk at a time take turns, and a long one cannot keep a
    short one out. What was not used is saved up for BURST_S at most. In any span of time there
    passes no more than the rate allows in that span and BURST_S, and what was taken last; beside
    it, what was taken at once.
    """

    def __init__(self, per_s: float, waiting: Waiting) -> None:
        self._per_s = per_s
        self._waiting = waiting
        self._turns = Turns()
        # When the rate has made up for all that was taken.
        self._free_s = waiting.now() - BURST_S

    @property
    def per_s(self) -> float:
        return self._per_s

    def change(self, per_s: float) -> None:
        """Another rate from now on, for those who wait already, too."""
        with self._turns.changed:
            now = self._waiting.now()
            self._free_s = now + (self._free_s - now) * self._per_s / per_s
            self._per_s = per_s

    def take(self, amount: int, is_wanted: Callable[[], bool] | None = None) -> None:
        """Return when `amount` may pass. `is_wanted`: default, whether the call's caller waits.

        Raises:
            RetriableRemoteStorageError: nobody wants it any more, or the service stops.
        """
        with self._turns.ticket(amount) as ticket:
            self._waiting.out(lambda: self._left_s(ticket), is_wanted or current_call().is_active)

    def take_at_once(self, amount: int) -> None:
        """Take without a turn; who waits makes up for it."""
        with self._turns.changed:
            self._free_s = max(self._free_s, self._waiting.now() - BURST_S) + amount / self._per_s

    def _left_s(self, ticket: Ticket) -> float:
        """How long until its turn, as things are; 0: it has come."""
        with self._turns.changed:
            now = self._waiting.now()
            self._let_pass(now)
            if ticket.passed:
                return 0
            before = self._turns.amount_before(ticket)
            return max(self._free_s + before / self._per_s - now, _SHORTEST_PAUSE_S)

    def _let_pass(self, now: float) -> None:
        """All whose turn has come, in order, whoever of them happens to look first."""
        self._free_s = max(self._free_s, now - BURST_S)
        while self._free_s <= now and not self._turns.is_empty():
            self._free_s += self._turns.pass_first().amount / self._per_s


class ByteRate:
    """A RateLimit of streams, or none."""

    def __init__(self, bytes_per_s: int, waiting: Waiting) -> None:
        """`bytes_per_s`: of all streams together; 0: as fast as they can."""
        self._limit = RateLimit(bytes_per_s, waiting) if bytes_per_s else None

    def limited(self, chunks: Iterator[Piece]) -> Iterator[Piece]:
        """The same chunks, each given out when its bytes may pass; ends `chunks` when it is closed.

        Raises:
            RetriableRemoteStorageError: the caller gave up meanwhile, or the service stops.
        """
        return chunks if self._limit is None else _limited(chunks, self._limit)


def _limited(chunks: Iterator[Piece], limit: RateLimit) -> Iterator[Piece]:
    try:
        for chunk in chunks:
            limit.take(len(chunk))
            yield chunk
    finally:
        if isinstance(chunks, Generator):
            chunks.close()


@dataclass(frozen=True, slots=True)
class Limits:
    """Rates and repeats.

    Attributes:
        upload_rate_bytes_per_s: what all copies take in; 0: as fast as they can.
        fetch_rate_bytes_per_s: what all fetches give out; 0: as fast as they can.
        delete_rate_keys_per_s: of objects, at most; see DeletePace.
        delete_retries: how often keys are deleted again that the store failed on for the moment.
    """

    upload_rate_bytes_per_s: int = 0
    fetch_rate_bytes_per_s: int = 0
    delete_rate_keys_per_s: int = 3500
    delete_retries: int = 0


DEFAULT_LIMITS = Limits()

CLEAN_UP_S = 10.0
"""Of each of the two steps: to end an unfinished upload, and to delete objects. All that a step
asks of the store falls within it, whether or not a caller waits: it holds a thread all the
while."""

_end_s: ContextVar[float] = ContextVar("end_s", default=inf)


@contextmanager
def asking_until(end_s: float) -> Iterator[None]:
    """Inside, no request of this thread to a store lasts longer."""
    before = _end_s.set(end_s)
    try:
        yield
    finally:
        _end_s.reset(before)


@contextmanager
def cleaning_up(waiting: Waiting) -> Iterator[None]:
    """Inside, the current call is wanted for CLEAN_UP_S and no longer, whoever made it, and whether
    or not the service stops: many copies fail because it does."""
    end_s = waiting.now() + CLEAN_UP_S

    def left_s() -> float:
        return end_s - waiting.now()

    call = replace(current_call(), is_active=lambda: left_s() > 0, left_s=left_s)
    with asking_until(end_s), serving(call), outlasting_close():
        yield


def left_s(waiting: Waiting) -> float:
    """How long a request of this thread to a store may last, s; infinite: nothing bounds it."""
    return _end_s.get() - waiting.now()


ANSWER_S = 1.0
"""Before its deadline a call begins nothing more, so that its answer arrives; a tenth of its time
where it has less than ten seconds."""

MOST_LOOKED_FOR = 30
"""Things that each take requests of their own before they can be deleted together."""

T = TypeVar("T")


@contextmanager
def in_time(waiting: Waiting) -> Iterator[None]:
    """Inside, the current call is wanted until ANSWER_S before its deadline. What is asked of the
    store by then may take half of that yet."""
    call = current_call()
    answer_s = min(ANSWER_S, call.left_s() / 10)

    def left_s() -> float:
        return call.left_s() - answer_s

    def is_active() -> bool:
        return left_s() > 0 and call.is_active()

    end_s = waiting.now() + left_s() + answer_s / 2
    with asking_until(end_s), serving(replace(call, is_active=is_active, left_s=left_s)):
        yield


def require_wanted() -> None:
    """Raise RetriableRemoteStorageError where the current call is not to begin anything more."""
    call = current_call()
    if call.left_s() <= 0:
        raise RetriableRemoteStorageError("the time ran out before this was done; repeat it")
    if not call.is_active():
        raise RetriableRemoteStorageError("nobody waits for it any more")


def next_slice(todo: deque[T]) -> Iterator[T]:
    """Take what is to be looked for before what was found is deleted: one at least, MOST_LOOKED_FOR
    at most, and none after a third of the time that is left. The last one may take another third,
    and the third one is for deleting."""
    enough_s = current_call().left_s() * 2 / 3
    for _ in range(min(MOST_LOOKED_FOR, len(todo))):
        yield todo.popleft()
        if current_call().left_s() < enough_s:
            return
