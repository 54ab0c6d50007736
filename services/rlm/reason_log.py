"""Log why something is not done for a topic, once for each reason."""

import logging
import threading
from uuid import UUID

from cachetools import LRUCache

from services.api.ids import TopicIdPartition

_MAX_TOPICS = 10_000
_log = logging.getLogger(__name__)


class ReasonLog:
    """Log a topic's reason when it changes. Thread-safe.

    Args:
        message: with a place for the topic's name and one for the reason.
    """

    def __init__(self, message: str) -> None:
        self._message = message
        self._lock = threading.Lock()
        self._logged: LRUCache[UUID, str] = LRUCache(_MAX_TOPICS)

    def log(self, name: TopicIdPartition, reason: str) -> None:
        """Log the reason if it is new; "" if there is none any more."""
        with self._lock:
            if self._logged.get(name.topic_id, "") == reason:
                return
            self._logged[name.topic_id] = reason
        if reason:
            _log.info(self._message, name.topic, reason)
