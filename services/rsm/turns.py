"""Turns at something that calls share: first come, first served."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from threading import Condition


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
