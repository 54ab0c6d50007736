"""The gaps that RLMM has recorded for a partition."""

import threading

from services.api.ids import TopicIdPartition
from services.api.offset_gaps import OffsetGap
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.rlm.tier_view.tier import Tier


class RecordedGaps:
    """Follows one partition's gaps. To be asked only where something is lost, which is seldom: it
    then reads them once for each revision. Thread-safe."""

    def __init__(
        self, rlmm: RemoteLogMetadataManager, topic_id_partition: TopicIdPartition
    ) -> None:
        self._rlmm = rlmm
        self._name = topic_id_partition
        self._lock = threading.Lock()
        self._revision: int | None = None
        self._gaps: tuple[OffsetGap, ...] = ()

    @property
    def last_seen(self) -> tuple[OffsetGap, ...]:
        return self._gaps

    def refresh(self, tier: Tier) -> tuple[OffsetGap, ...]:
        """The gaps as RLMM has them at the tier's revision, or later.

        Raises:
            RemoteResourceNotFoundError: the partition was deleted.
            RetriableRemoteStorageError: RLMM or its database cannot be reached.
        """
        with self._lock:
            if self._revision is None or self._revision != tier.revision:
                self._gaps = self._rlmm.partition_state(self._name).value.gaps
                self._revision = tier.revision
            return self._gaps
