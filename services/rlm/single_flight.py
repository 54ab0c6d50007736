"""Work that several want at once is done once, by the one who came first."""

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

from services.api.errors import RetriableRemoteStorageError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SingleFlight(Generic[K, V]):
    """Thread-safe. Nothing is remembered: neither what work answered nor how it failed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: dict[K, Future[V]] = {}

    def run(self, key: K, work: Callable[[], V], wait_s: float) -> tuple[V, bool]:
        """What `work` answers, and whether it is this caller's, which was done then, or that of one
        that was under way for `key`.

        Args:
            wait_s: for how long to wait for somebody else's.

        Raises:
            RetriableRemoteStorageError: somebody else's took longer.
            Exception: with which the work failed; all who wait get it.
        """
        with self._lock:
            others = self._under_way.get(key)
            mine: Future[V] = Future()
            if others is None:
                self._under_way[key] = mine
        if others is not None:
            return self._answer_of(others, key, wait_s), False
        try:
            answer = work()
        except BaseException as e:
            self._end(key)
            mine.set_exception(e)
            raise
        self._end(key)
        mine.set_result(answer)
        return answer, True

    def _answer_of(self, others: "Future[V]", key: K, wait_s: float) -> V:
        if not wait([others], wait_s).done:
            raise RetriableRemoteStorageError(
                f"another read has been fetching {key} for over {wait_s:g} s"
            )
        return others.result()

    def _end(self, key: K) -> None:
        with self._lock:
            del self._under_way[key]
