"""A partition's leader epochs, with those that the broker no longer has."""

import threading

from services.api.errors import (
    CorruptSegmentError,
    InvalidRequestError,
    RetriableRemoteStorageError,
    ThrottledError,
)
from services.api.ids import RemoteLogSegmentId
from services.api.lineage import Lineage, parse_checkpoint
from services.api.remote_storage_manager import IndexType, RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata
from services.rlm.tier_view.tier import Tier


class TierLineage:
    """Follows the newest segment's LEADER_EPOCH index, which has the whole history. Thread-safe.

    Attributes:
        asked_in_vain: how often in a row RSM did not answer, or its store.
    """

    def __init__(self, rsm: RemoteStorageManager) -> None:
        self.asked_in_vain = 0
        self._rsm = rsm
        self._lock = threading.Lock()
        self._read_from: RemoteLogSegmentId | None = None
        self._lineage = Lineage()

    def merged(self, tier: Tier, local: Lineage) -> Lineage:
        """The tier's history overruled by the broker's, where it is needed at all: a broker whose
        own reaches back to the tier's beginning is not asked about.

        Raises:
            RemoteResourceNotFoundError, CorruptSegmentError: the index cannot be read.
            RetriableRemoteStorageError: RSM or its store cannot be reached, or has no time.
        """
        if _reaches_back(tier, local):
            return local
        return self._of(tier).merged_with_report(local)

    def needs_rsm(self, tier: Tier, local: Lineage) -> bool:
        """Whether `merged` has to ask RSM."""
        newest = tier.newest
        is_read = newest is not None and self._read_from == newest.remote_log_segment_id
        return not is_read and not _reaches_back(tier, local)

    def _of(self, tier: Tier) -> Lineage:
        assert tier.newest is not None
        with self._lock:
            if self._read_from != tier.newest.remote_log_segment_id:
                data = self._index_of(tier.newest)
                try:
                    self._lineage = parse_checkpoint(data.decode("ascii"))
                except (UnicodeDecodeError, InvalidRequestError) as e:
                    name = tier.newest.remote_log_segment_id
                    raise CorruptSegmentError(f"{name}: LEADER_EPOCH index: {e}") from e
                self._read_from = tier.newest.remote_log_segment_id
            return self._lineage

    def _index_of(self, segment: RemoteLogSegmentMetadata) -> bytes:
        in_vain, self.asked_in_vain = self.asked_in_vain, 0
        try:
            return b"".join(self._rsm.fetch_index(segment, IndexType.LEADER_EPOCH))
        except (RetriableRemoteStorageError, ThrottledError) as e:
            self.asked_in_vain = in_vain + 1
            name = segment.remote_log_segment_id
            raise RetriableRemoteStorageError(
                f"the tier's leader epochs cannot be read now: {name}: {e}"
            ) from e


def _reaches_back(tier: Tier, local: Lineage) -> bool:
    """The broker's own history is all that is needed."""
    if tier.newest is None or tier.start_offset is None:
        return True
    return local.epoch_for_offset(tier.start_offset) is not None
