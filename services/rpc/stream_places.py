"""Who may stream now, who waits for a thread, and who is refused: decided when a stream comes."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from services.api.errors import ThrottledError

WAITING_PER_THREAD = 2


def share_of(count: int, percent: int) -> int:
    """What one address may have of `count`: less than all of it, but for 100 % and but for 1."""
    return count if percent == 100 else max(1, min(count - 1, count * percent // 100))


class Place:
    """A stream that was let in."""

    __slots__ = ("address", "serve")

    def __init__(self, address: str, serve: Callable[[], None]) -> None:
        self.address = address
        self.serve = serve


class StreamPlaces:
    """The threads for streams of one kind, and a bounded number of streams that wait for one.

    One address has a share of both, so that it always leaves some to others, whatever it opens. A
    stream that waits holds no thread, and is passed by those of addresses that may have more.
    """

    def __init__(self, pool: ThreadPoolExecutor, threads: int, share_percent: int) -> None:
        self._pool = pool
        self._threads = threads
        self._threads_of_one = share_of(threads, share_percent)
        self._waiting_at_most = WAITING_PER_THREAD * threads
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
                self._waiting[place] = None
            else:
                raise ThrottledError(
                    f"streams: {self._threads} are served at once, {self._threads_of_one} of one "
                    f"address, and as many wait as may; come back in some seconds"
                )
        return place

    def withdraw(self, place: Place) -> None:
        """The stream is over; if it still waits it is not served any more."""
        with self._lock:
            self._waiting.pop(place, None)

    def wants_thread_of(self, address: str) -> bool:
        """Whether a stream waits that could run if one of this address ended."""
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
            if self._may_run(place.address):
                del self._waiting[place]
                self._start(place)
