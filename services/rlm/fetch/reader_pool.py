"""Run parts of a request for the tier in threads of a bounded pool."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock
from typing import Any, TypeVar

from services.api.calls import current_call, serving
from services.api.ids import TopicIdPartition
from services.common.threads import started_pool

T = TypeVar("T")

_THREADS_FOR_ONE = 4
"""As many threads for each read that runs at once, because late calls keep theirs."""

_MOST_LATE = 2
"""Of one partition: a consumer that asks again and again must not fill the pool."""


class ReaderPool:
    """Run work beside the thread of a request, under the call of the request. Thread-safe.

    Source: RemoteLogManager.remoteStorageReaderThreadPool.

    Args:
        threads: reads at once; the pool has more, for late calls and reads that wait for a slot.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._lock = Lock()
        self._submitted: set[Future[Any]] = set()
        self._executor = started_pool(threads * _THREADS_FOR_ONE, "tier-read")

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Begin work as soon as a thread is free.

        Raises:
            RuntimeError: if the pool is closed.
        """
        call = current_call()

        def run() -> T:
            with serving(call):
                return work()

        submitted = self._executor.submit(run)
        with self._lock:
            self._submitted.add(submitted)
        submitted.add_done_callback(self._end)
        return submitted

    @property
    def is_idle(self) -> bool:
        """Return whether no work runs or waits, not even for a request that has ended."""
        return not self._submitted

    def _end(self, done: Future[Any]) -> None:
        with self._lock:
            self._submitted.discard(done)

    def close(self) -> None:
        """Begin nothing more. Idempotent."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class LateCalls:
    """Count the calls of each partition that no request waits for any more. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running = Counter[TopicIdPartition]()

    def are_too_many(self, tp: TopicIdPartition) -> bool:
        """Return whether a partition must not begin another call."""
        return self._running[tp] >= _MOST_LATE

    def add(self, tp: TopicIdPartition, call: "Future[Any]") -> None:
        """Count a call until it ends."""
        with self._lock:
            self._running[tp] += 1
        call.add_done_callback(lambda _: self._end(tp))

    def _end(self, tp: TopicIdPartition) -> None:
        with self._lock:
            self._running[tp] -= 1
            if not self._running[tp]:
                del self._running[tp]
