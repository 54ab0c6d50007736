"""What the tier's log start tells of the offsets right behind it."""

import threading
from dataclasses import dataclass

from services.api.ids import TopicIdPartition
from services.api.partition_events import EventQuery, PartitionEvent
from services.api.partition_queries import latest_event
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.retention import DeletionReason
from services.rlm.tier_view.tier import Tier

_DISABLED = DeletionReason.TIERING_DISABLED.value


@dataclass(frozen=True, slots=True)
class _Seen:
    """Whether tiering was disabled at that log start, as the events up to the revision tell."""

    log_start_offset: int
    revision: int
    is_disabled: bool


class RaisedLogStart:
    """Follows why one partition's log start is where it is. To be asked only where something is
    missing right behind it, which is seldom. Thread-safe.

    Where retention raised it, what lay below was in the tier, and all that follows was to come
    into it. Where TIERING_DISABLED did, or gave up what the tier had from there on, nothing was
    copied any more for as long as that lasted, and nobody knows from where on it is again.
    """

    def __init__(
        self, rlmm: RemoteLogMetadataManager, topic_id_partition: TopicIdPartition
    ) -> None:
        self._rlmm = rlmm
        self._name = topic_id_partition
        self._lock = threading.Lock()
        self._seen: _Seen | None = None

    def last_seen(self, tier: Tier) -> int:
        """As `refresh`, but RLMM is not asked: what is not known counts as raised by retention."""
        return _kept_from(tier, self._seen)

    def refresh(self, tier: Tier) -> int:
        """The tier's log start, where all from there on was to be copied; 0: nobody knows from
        where on.

        Raises:
            RemoteResourceNotFoundError: there never was such a partition.
            RetriableRemoteStorageError: RLMM or its database cannot be reached.
        """
        with self._lock:
            self._seen = seen = self._look(tier)
        return _kept_from(tier, seen)

    def _look(self, tier: Tier) -> _Seen | None:
        seen, revision = self._seen, tier.revision
        if seen is not None and seen.log_start_offset != tier.log_start_offset:
            seen = None
        # Only a further raise ends what TIERING_DISABLED began.
        is_settled = seen is not None and (seen.is_disabled or seen.revision == revision)
        if is_settled or revision is None:
            return seen
        query = EventQuery(self._name, 0 if seen is None else seen.revision)
        event = latest_event(self._rlmm, query, revision, _tells)
        if event is not None:
            is_disabled = event.reason == _DISABLED
        else:
            is_disabled = seen is None and self._may_be_disabled()
        return _Seen(tier.log_start_offset, revision, is_disabled)

    def _may_be_disabled(self) -> bool:
        """The audit trail does not go back so far: as the topic's settings allow it now."""
        return self._rlmm.topic_config(self._name.topic_id).config.remote_log_delete_on_disable


def _kept_from(tier: Tier, seen: _Seen | None) -> int:
    if seen is not None and seen.is_disabled and seen.log_start_offset == tier.log_start_offset:
        return 0
    return tier.log_start_offset


def _tells(event: PartitionEvent) -> bool:
    # Where the log start was there already, no LOG_START event says that tiering was disabled.
    return event.kind == "LOG_START" or event.reason == _DISABLED
