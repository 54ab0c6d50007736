"""A rate that all calls of a process keep to together."""

from collections.abc import Callable, Generator, Iterator
from threading import Lock

from services.api.calls import current_call
from services.rsm.waiting import Waiting

BURST_S = 0.1


class RateLimit:
    """Lets bytes, or whatever is counted, pass at a rate. Thread-safe.

    Who asks gets the next free moment, and what it takes pushes the moment of the next one on: so
    calls that ask for a chunk at a time take turns, and a long one cannot keep a short one out.
    What was not used is saved up for BURST_S at most. In any span of time there passes no more
    than the rate allows in that span and BURST_S, and what was taken last.
    """

    def __init__(self, per_s: float, waiting: Waiting) -> None:
        self._per_s = per_s
        self._waiting = waiting
        self._lock = Lock()
        self._next_s = waiting.now() - BURST_S

    @property
    def per_s(self) -> float:
        return self._per_s

    def change(self, per_s: float) -> None:
        """Another rate from now on; whoever waits already keeps its moment."""
        with self._lock:
            self._per_s = per_s

    def take(self, amount: int, is_wanted: Callable[[], bool] | None = None) -> None:
        """Return when `amount` may pass. `is_wanted`: default, whether the call's caller waits.

        Raises:
            RetriableRemoteStorageError: nobody wants it any more. It counts as taken: whoever waits
                behind it has its moment already.
        """
        with self._lock:
            due_s = max(self._next_s, self._waiting.now() - BURST_S)
            self._next_s = due_s + amount / self._per_s
        self._waiting.until(due_s, is_wanted or current_call().is_active)


class ByteRate:
    """A RateLimit of streams, or none."""

    def __init__(self, bytes_per_s: int, waiting: Waiting) -> None:
        """`bytes_per_s`: of all streams together; 0: as fast as they can."""
        self._limit = RateLimit(bytes_per_s, waiting) if bytes_per_s else None

    def limited(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """The same chunks, each given out when its bytes may pass; ends `chunks` when it is closed.

        Raises:
            RetriableRemoteStorageError: the caller gave up meanwhile, or the service stops.
        """
        return chunks if self._limit is None else _limited(chunks, self._limit)


def _limited(chunks: Iterator[bytes], limit: RateLimit) -> Iterator[bytes]:
    try:
        for chunk in chunks:
            limit.take(len(chunk))
            yield chunk
    finally:
        if isinstance(chunks, Generator):
            chunks.close()
