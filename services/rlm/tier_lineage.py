"""Read the leader epochs of the tier from its newest segment in RSM."""

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
from services.rlm.tier import Tier


class TierLineage:
    """Follow the newest segment's LEADER_EPOCH index, which has the whole lineage. Thread-safe.

    Attributes:
        unanswered_calls: requests in a row that RSM or its store did not answer.
    """

    def __init__(self, rsm: RemoteStorageManager) -> None:
        self.unanswered_calls = 0
        self._rsm = rsm
        self._lock = threading.Lock()
        # Replaced as one, for those that read it without the lock.
        self._last_read: tuple[RemoteLogSegmentId | None, Lineage] = None, Lineage()

    def merged(self, tier: Tier, local: Lineage) -> Lineage:
        """Return the tier's lineage, overruled by the broker's.

        If the broker's lineage reaches back to the tier's beginning, return it alone.

        Raises:
            RemoteResourceNotFoundError, CorruptSegmentError: if the index cannot be read.
        """
        if reaches_back(tier, local):
            return local
        return self.of(tier).merged_with_report(local)

    def known(self, tier: Tier, local: Lineage) -> Lineage | None:
        """Return what `merged` returns if that is in memory; None if it has to call RSM."""
        if reaches_back(tier, local):
            return local
        read_from, lineage = self._last_read
        is_read = tier.newest is not None and read_from == tier.newest.remote_log_segment_id
        return lineage.merged_with_report(local) if is_read else None

    def needs_rsm(self, tier: Tier, local: Lineage) -> bool:
        """Return whether `merged` has to call RSM."""
        return self.known(tier, local) is None

    @property
    def last_read(self) -> Lineage:
        return self._last_read[1]

    def of(self, tier: Tier) -> Lineage:
        """Return the lineage of the newest segment; an empty one if there is no segment."""
        if tier.newest is None:
            return Lineage()
        with self._lock:
            if self._last_read[0] != tier.newest.remote_log_segment_id:
                data = self._index_of(tier.newest)
                try:
                    lineage = parse_checkpoint(data.decode("ascii"))
                except (UnicodeDecodeError, InvalidRequestError) as e:
                    name = tier.newest.remote_log_segment_id
                    raise CorruptSegmentError(f"{name}: LEADER_EPOCH index: {e}") from e
                self._last_read = tier.newest.remote_log_segment_id, lineage
            return self._last_read[1]

    def _index_of(self, segment: RemoteLogSegmentMetadata) -> bytes:
        unanswered, self.unanswered_calls = self.unanswered_calls, 0
        try:
            return b"".join(self._rsm.fetch_index(segment, IndexType.LEADER_EPOCH))
        except (RetriableRemoteStorageError, ThrottledError) as e:
            self.unanswered_calls = unanswered + 1
            name = segment.remote_log_segment_id
            raise RetriableRemoteStorageError(
                f"cannot read the tier's leader epochs from {name}; retrying: {e}"
            ) from e


def reaches_back(tier: Tier, lineage: Lineage) -> bool:
    """Return whether the lineage reaches back to the tier's beginning."""
    return tier.start_offset is None or lineage.epoch_for_offset(tier.start_offset) is not None
