"""One pass over a partition that this broker follows: know what the leader has copied.

Source: RemoteLogManager.RLMFollowerTask.
"""

from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.rlm.announcing import announce
from services.rlm.copying.uncopied import Uncopied
from services.rlm.partition import Partition


class FollowerTask:
    """Passes over one partition, one at a time. Changes nothing in the tier."""

    def __init__(
        self, partition: Partition, rlmm: RemoteLogMetadataManager, broker_id: int
    ) -> None:
        self._partition = partition
        self._rlmm = rlmm
        self._broker_id = broker_id

    def run(self) -> None:
        """
        Raises:
            RemoteStorageError: RLMM cannot be asked now.
        """
        partition = self._partition
        leadership = partition.leadership
        if leadership is None or leadership.is_leader:
            return
        # What this broker left uncopied when it led is the new leader's to copy, and to tell of.
        partition.uncopied = Uncopied()
        announce(self._rlmm, partition, leadership, leadership.leader_epoch, self._broker_id)
        if not partition.tier.is_as_polled:
            partition.tier.refresh()
