"""Run parts of a request for the tier in threads of a bounded pool."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from services.api.calls import current_call, serving

T = TypeVar("T")


class ReaderPool:
    """Run work beside the thread of a request, under the call of the request. Thread-safe.

    Source: RemoteLogManager.remoteStorageReaderThreadPool.

    Args:
        threads: started when they are needed.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._executor = ThreadPoolExecutor(threads, "tier-read")

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Begin work as soon as a thread is free.

        Raises:
            RuntimeError: if the pool is closed, or no thread can be started.
        """
        call = current_call()

        def run() -> T:
            with serving(call):
                return work()

        return self._executor.submit(run)

    def close(self) -> None:
        """Begin nothing more. Idempotent."""
        self._executor.shutdown(wait=False, cancel_futures=True)
