"""Read the settings of topics once for all their partitions."""

import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Generic, TypeVar
from uuid import UUID

from services.api.errors import RetriableRemoteStorageError
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.topic_config import StoredTopicConfig

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


_WAIT_S = 60.0
"""For somebody else's question: longer than its deadline."""


@dataclass(frozen=True, slots=True)
class _Read:
    stored: StoredTopicConfig
    at_s: float


class TopicConfigs:
    """Settings as they were a short while ago. That is enough to plan by: who deletes names their
    revision, and RLMM refuses it where there is a newer one. Thread-safe.

    Args:
        max_age_s: how old an answer may be, seconds.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        rlmm: RemoteLogMetadataManager,
        max_age_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rlmm = rlmm
        self._max_age_s = max_age_s
        self._clock = clock
        self._lock = threading.Lock()
        self._read: dict[UUID, _Read] = {}
        self._flights: SingleFlight[UUID, StoredTopicConfig] = SingleFlight()

    def of(self, topic_id: UUID) -> StoredTopicConfig:
        """Partitions of a topic that ask at once cause one question.

        Raises:
            RemoteResourceNotFoundError: the topic id is not known.
            RetriableRemoteStorageError: RLMM cannot be reached.
        """
        stored = self._known(topic_id)
        if stored is None:
            stored, _ = self._flights.run(topic_id, lambda: self._ask(topic_id), _WAIT_S)
        return stored

    def _known(self, topic_id: UUID) -> StoredTopicConfig | None:
        with self._lock:
            self._drop_old()
            read = self._read.get(topic_id)
        return None if read is None else read.stored

    def _ask(self, topic_id: UUID) -> StoredTopicConfig:
        # Whoever asked last may have been told just before this.
        stored = self._known(topic_id)
        if stored is None:
            asked_s = self._clock()
            stored = self._rlmm.topic_config(topic_id)
            with self._lock:
                self._read[topic_id] = _Read(stored, asked_s)
        return stored

    def forget(self, topic_id: UUID) -> None:
        """Read it anew when it is next asked for."""
        with self._lock:
            self._read.pop(topic_id, None)

    def _drop_old(self) -> None:
        oldest_s = self._clock() - self._max_age_s
        # In the order in which they were read: all that are too old stand first.
        while self._read:
            topic_id, read = next(iter(self._read.items()))
            if read.at_s > oldest_s:
                return
            del self._read[topic_id]
