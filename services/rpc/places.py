"""Whose call is served now, who waits for a thread, and who is refused: decided when it comes."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from services.api.errors import ThrottledError


def share_of(count: int, percent: int) -> int:
    """What one address may have of `count`: less than all of it, but for 100 % and but for 1."""
    return count if percent == 100 else max(1, min(count - 1, count * percent // 100))


class Place:
    """A call that was let in; `waits`: it has no thread yet."""

    __slots__ = ("address", "serve", "waits")

    def __init__(self, address: str, serve: Callable[[], None]) -> None:
        self.address = address
        self.serve = serve
        self.waits = False


class Places:
    """The threads for calls of one kind, and a bounded number of calls that wait for one.

    One address has a share of both, so that it always leaves some to others, whatever it opens. A
    call that waits holds no thread, and is passed by those of addresses that may have more.
    """

    def __init__(
        self, pool: ThreadPoolExecutor, threads: int, waiting_per_thread: int, share_percent: int
    ) -> None:
        self._pool = pool
        self._threads = threads
        self._threads_of_one = share_of(threads, share_percent)
        self._waiting_at_most = waiting_per_thread * threads
        self._waiting_of_one = share_of(self._waiting_at_most, share_percent)
        self._lock = Lock()
        self._running: Counter[str] = Counter()
        # In the order in which they came.
        self._waiting: dict[Place, None] = {}

    def take(self, address: str, serve: Callable[[], None]) -> Place:
        """Have `serve` called once, in a thread of the pool, now or when there is one.

        `address`: of the party that calls (see peers).

        Raises:
            ThrottledError: all places are taken, or all that this address may have.
        """
        place = Place(address, serve)
        with self._lock:
            if self._may_run(address):
                self._start(place)
            elif self._may_wait(address):
                place.waits = True
                self._waiting[place] = None
            else:
                raise ThrottledError(
                    f"calls of this kind: {self._threads} are served at once, "
                    f"{self._threads_of_one} of one address, and as many wait as may; come back in "
                    f"some seconds"
                )
        return place

    def withdraw(self, place: Place) -> None:
        """The call is over; if it still waits it is not served any more."""
        with self._lock:
            self._waiting.pop(place, None)

    def wants_thread_of(self, address: str) -> bool:
        """Whether a call waits that could run if one of this address ended."""
        with self._lock:
            return any(
                place.address == address or self._running[place.address] < self._threads_of_one
                for place in self._waiting
            )

    def _may_run(self, address: str) -> bool:
        free = self._running.total() < self._threads
        return free and self._running[address] < self._threads_of_one

    def _may_wait(self, address: str) -> bool:
        if len(self._waiting) >= self._waiting_at_most:
            return False
        of_address = sum(place.address == address for place in self._waiting)
        return of_address < self._waiting_of_one

    def _start(self, place: Place) -> None:
        place.waits = False
        self._pool.submit(self._serve, place)
        self._running[place.address] += 1

    def _serve(self, place: Place) -> None:
        try:
            place.serve()
        finally:
            with self._lock:
                self._running[place.address] -= 1
                if not self._running[place.address]:
                    del self._running[place.address]
                self._start_waiting()

    def _start_waiting(self) -> None:
        for place in list(self._waiting):
            if self._running.total() >= self._threads:
                return
            if self._may_run(place.address):
                del self._waiting[place]
                self._start(place)
