"""The settings of the topics that are here, read once for all partitions of a topic."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.topic_config import StoredTopicConfig


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

    def of(self, topic_id: UUID) -> StoredTopicConfig:
        """
        Raises:
            RemoteResourceNotFoundError: the topic id is not known.
        """
        with self._lock:
            self._drop_old()
            read = self._read.get(topic_id)
        if read is not None:
            return read.stored
        stored = self._rlmm.topic_config(topic_id)
        with self._lock:
            self._read[topic_id] = _Read(stored, self._clock())
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
