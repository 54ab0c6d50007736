"""How an object is cut into parts, and the memory that they wait in."""

import time

from services.api.calls import current_call
from services.api.errors import RetriableRemoteStorageError
from services.rsm.turns import Ticket, Turns

MAX_PARTS = 10_000
_LOOK_EVERY_S = 0.1


def part_size_bytes(object_size_bytes: int, least_bytes: int) -> int:
    """The size of all parts but the last: `least_bytes`, or more where that were too many parts.

    S3 takes MAX_PARTS of 5 MiB at least. A log of 2 GiB - 1 has 410 of these, so parts grow only
    in a store that is given smaller ones.
    """
    return max(least_bytes, -(-object_size_bytes // MAX_PARTS))


class PartBuffers:
    """A fixed number of buffers. To wait for a free one is the back-pressure.

    Memory is taken when a buffer is first needed. A taker must send its buffer off before it
    takes the next one, so that some buffer always comes back. Who waits gets one in its turn, so
    that no copy keeps another from going on.
    """

    def __init__(self, count: int, size_bytes: int, wait_timeout_ms: int) -> None:
        """`size_bytes`: of every buffer, but those of an object that needs larger parts."""
        self.size_bytes = size_bytes
        self._wait_timeout_s = wait_timeout_ms / 1000
        self._turns = Turns()
        # Last in, first out: what has memory is used again before what has none.
        self._free: list[memoryview | None] = [None] * count

    def take(self, size_bytes: int | None = None) -> memoryview:
        """A buffer of at least `size_bytes` (default: as all are) with old bytes in it.

        Raises:
            RetriableRemoteStorageError: none became free in time, since the store is too slow; or
                the caller gave up.
            MemoryError: there is no memory for it now; it stays free.
        """
        size_bytes = size_bytes or self.size_bytes
        with self._turns.ticket() as ticket:
            free = self._take(ticket)
        if free is not None and len(free) >= size_bytes:
            return free
        try:
            return memoryview(bytearray(size_bytes))
        except MemoryError:
            self._put_back(free)
            raise

    def give_back(self, buffer: memoryview) -> None:
        # One that was made for larger parts must not stay.
        self._put_back(buffer if len(buffer) == self.size_bytes else None)

    def _put_back(self, free: memoryview | None) -> None:
        with self._turns.changed:
            self._free.append(free)
            self._turns.changed.notify_all()

    def _take(self, ticket: Ticket) -> memoryview | None:
        due_s = time.monotonic() + self._wait_timeout_s
        with self._turns.changed:
            while not (self._free and self._turns.is_first(ticket)):
                left_s = due_s - time.monotonic()
                if left_s <= 0:
                    text = f"no part buffer became free within {self._wait_timeout_s:g} s"
                    raise RetriableRemoteStorageError(text)
                if not current_call().is_active():
                    raise RetriableRemoteStorageError("the caller gave up")
                self._turns.changed.wait(min(left_s, _LOOK_EVERY_S))
            self._turns.pass_first()
            return self._free.pop()
