"""Counts one fetch of a partition from where it comes to the tier."""

from services.api.errors import RemoteStorageError
from services.api.remote_log_manager import RecordSource
from services.rlm.reading.partition_fetch import LostSegmentError
from services.rlm.topic_counts import (
    REMOTE_FETCH_BYTES,
    REMOTE_FETCH_ERRORS,
    REMOTE_FETCH_REQUESTS,
    TopicCounts,
)


class TierRead:
    """Single use. A fetch that the log here answers counts nothing; nor is an offset that is out of
    range an error of the tier.

    Source: RemoteLogReader.
    """

    def __init__(self, counts: TopicCounts, topic: str) -> None:
        self._counts = counts
        self._topic = topic
        self._has_begun = False

    def got(self, source: RecordSource, size_bytes: int) -> None:
        """A batch is to be served."""
        if source is RecordSource.REMOTE:
            self._begin()
            self._counts.add(REMOTE_FETCH_BYTES, self._topic, size_bytes)

    def failed(self, error: Exception) -> None:
        """The fetch has, whatever failed it."""
        if isinstance(error, (RemoteStorageError, LostSegmentError)):
            self._begin()
            self._counts.add(REMOTE_FETCH_ERRORS, self._topic)

    def _begin(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._counts.add(REMOTE_FETCH_REQUESTS, self._topic)
