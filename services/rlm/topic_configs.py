"""The settings of the topics that are here, read once for all partitions of a topic."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.topic_config import StoredTopicConfig
from services.rlm.single_flight import SingleFlight

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
