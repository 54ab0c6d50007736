"""A partition's leader epochs, with those that the broker no longer has."""

import threading

from services.api.errors import CorruptSegmentError, InvalidRequestError
from services.api.ids import RemoteLogSegmentId
from services.api.lineage import Lineage, parse_checkpoint
from services.api.remote_storage_manager import IndexType, RemoteStorageManager
from services.rlm.tier_view.tier import Tier


class TierLineage:
    """Follows the newest segment's LEADER_EPOCH index, which has the whole history. Thread-safe."""

    def __init__(self, rsm: RemoteStorageManager) -> None:
        self._rsm = rsm
        self._lock = threading.Lock()
        self._read_from: RemoteLogSegmentId | None = None
        self._lineage = Lineage()

    def merged(self, tier: Tier, local: Lineage) -> Lineage:
        """The tier's history overruled by the broker's, where it is needed at all: a broker whose
        own reaches back to the tier's beginning is not asked about.

        Raises:
            RemoteResourceNotFoundError, CorruptSegmentError: the index cannot be read.
            RetriableRemoteStorageError: the store cannot be reached.
        """
        if tier.newest is None or tier.start_offset is None:
            return local
        if local.epoch_for_offset(tier.start_offset) is not None:
            return local
        return self._of(tier).merged_with_report(local)

    def _of(self, tier: Tier) -> Lineage:
        assert tier.newest is not None
        with self._lock:
            if self._read_from != tier.newest.remote_log_segment_id:
                data = b"".join(self._rsm.fetch_index(tier.newest, IndexType.LEADER_EPOCH))
                try:
                    self._lineage = parse_checkpoint(data.decode("ascii"))
                except (UnicodeDecodeError, InvalidRequestError) as e:
                    name = tier.newest.remote_log_segment_id
                    raise CorruptSegmentError(f"{name}: LEADER_EPOCH index: {e}") from e
                self._read_from = tier.newest.remote_log_segment_id
            return self._lineage
