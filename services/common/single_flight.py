"""Run the work for a key once among concurrent callers, and cache its result."""

from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future, wait
from contextlib import suppress
from threading import Lock
from typing import Generic, TypeVar

from cachetools import Cache

from services.api.calls import current_call
from services.api.errors import RetriableRemoteStorageError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _CallerLeftError(Exception):
    """Raised to the waiting callers if the caller that ran the work cancelled its call."""


class SingleFlight(Generic[K, V]):
    """Share one result between concurrent callers with the same key. Thread-safe.

    All waiting callers get a failure, and it is never cached. But if the caller that ran the work
    has cancelled its call, one of the waiting callers runs the work again.

    Args:
        cache: bounds the number, size and age of the cached results; a result that is larger than
            the whole cache is not cached. None: none is cached.
    """

    def __init__(self, cache: "Cache[K, V] | None" = None) -> None:
        self._lock = Lock()
        self._cache: Cache[K, V] = Cache(0) if cache is None else cache
        self._running: dict[K, Future[V]] = {}

    def run(self, key: K, work: Callable[[], V], wait_s: float | None = None) -> tuple[V, bool]:
        """Return the result for `key`, and whether this caller ran `work` for it.

        A cached result is returned at once. If another caller is running the work for `key`, wait
        for the result of that call.

        Args:
            wait_s: how long to wait for another caller; None: until it ends.

        Raises:
            RetriableRemoteStorageError: if another caller took longer than `wait_s`.
            Exception: the error of the work.
        """
        while True:
            with self._lock:
                with suppress(KeyError):
                    return self._cache[key], False
                running = self._running.get(key)
                if running is None:
                    mine = self._running[key] = Future()
            if running is None:
                return self._run(key, work, mine), True
            if not wait([running], wait_s).done:
                raise RetriableRemoteStorageError(
                    f"another read has been fetching {key} for over {wait_s:g} s"
                )
            with suppress(_CallerLeftError):
                return running.result(), False

    def cached(self, key: K) -> V | None:
        """Return the cached result without waiting; None if there is none."""
        with self._lock, suppress(KeyError):
            return self._cache[key]
        return None

    def current_keys(self) -> list[K]:
        """Return the keys whose results are cached or being computed."""
        with self._lock:
            return [*self._cache, *self._running]

    def discard(self, keys: Iterable[K]) -> None:
        """Drop the results for `keys`; those that are being computed will not be cached."""
        with self._lock:
            for key in keys:
                self._running.pop(key, None)
                with suppress(KeyError):
                    del self._cache[key]

    def _run(self, key: K, work: Callable[[], V], mine: "Future[V]") -> V:
        try:
            result = work()
        except BaseException as e:
            with self._lock:
                if self._running.get(key) is mine:
                    del self._running[key]
            mine.set_exception(e if current_call().is_active() else _CallerLeftError())
            raise
        with self._lock:
            if self._running.get(key) is mine:
                del self._running[key]
                with suppress(ValueError):  # It is larger than the cache.
                    self._cache[key] = result
        mine.set_result(result)
        return result
