"""A rate that all calls of a process keep to together."""

from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

from services.api.calls import current_call
from services.rsm.turns import Ticket, Turns
from services.rsm.waiting import Waiting

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
