"""Run parts of a request for the tier in threads of a bounded pool."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any, TypeVar

from services.api.calls import current_call, serving

T = TypeVar("T")

_THREADS_FOR_ONE = 4
"""As many threads for each read that runs at once: late calls may keep all but one of them."""


class ReaderPool:
    """Run work beside the thread of a request, under the call of the request. Thread-safe.

    Source: RemoteLogManager.remoteStorageReaderThreadPool.

    Args:
        threads: reads at once. More threads are started only while late calls keep some.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._lock = Lock()
        self._submitted: set[Future[Any]] = set()
        self._executor = ThreadPoolExecutor(threads * _THREADS_FOR_ONE, "tier-read")

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Begin work as soon as a thread is free.

        Raises:
            RuntimeError: if the pool is closed, or no thread can be started.
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
