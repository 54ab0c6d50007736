"""Cache the settings of topics, from RLMM."""

import time
from collections.abc import Callable
from uuid import UUID

from cachetools import TTLCache

from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.topic_config import StoredTopicConfig
from services.common.single_flight import SingleFlight

_MAX_TOPICS = 100_000
_WAIT_S = 60.0
"""The wait for another caller's request; longer than the deadline of a request."""


class TopicConfigs:
    """Cache the settings of topics for a short while. Thread-safe.

    Plans may use slightly old settings: a deletion names their revision, and RLMM refuses an old
    one.

    Args:
        max_age_s: the maximum age of an answer, seconds.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        rlmm: RemoteLogMetadataManager,
        max_age_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rlmm = rlmm
        self._cached: SingleFlight[UUID, StoredTopicConfig] = SingleFlight(
            TTLCache(_MAX_TOPICS, max_age_s, timer=clock)
        )

    def of(self, topic_id: UUID) -> StoredTopicConfig:
        """Return the settings of a topic; its partitions share one request.

        Raises:
            RemoteResourceNotFoundError: if the topic id is unknown.
        """
        stored, _ = self._cached.run(topic_id, lambda: self._rlmm.topic_config(topic_id), _WAIT_S)
        return stored

    def forget(self, topic_id: UUID) -> None:
        """Read the settings again at the next request."""
        self._cached.discard([topic_id])
