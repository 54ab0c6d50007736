"""What the tier has of one partition that is led here goes: its tasks end, then it is marked.

Source: KIP-950.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from time import monotonic

from services.api.errors import ConcurrentUpdateError, RemoteResourceNotFoundError
from services.api.topic_config import StoredTopicConfig
from services.rlm.lifecycle.partition_tasks import PartitionTasks
from services.rlm.lifecycle.stop_steps import Left
from services.rlm.lifecycle.tier_deletion import TierDeletion
from services.rlm.partition import Partition

COPY_ENDS_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Disabling:
    """
    Attributes:
        lock: of the roles; held for `give_up`, and where tasks end.
        give_up: ends the role once all is marked; None: nobody but the settings of the topic says
            that tiering is disabled, and the role stays.
    """

    partition: Partition
    tasks: PartitionTasks
    tier_deletion: TierDeletion
    lock: AbstractContextManager[object]
    give_up: Callable[[], None] | None

    def begin(self) -> Left:
        """End the tasks, if the settings, as RLMM has them now, allow it."""
        name = self.partition.topic_id_partition
        try:
            topic = self.tier_deletion.require_allowed(name, by_settings=self.give_up is None)
        except RemoteResourceNotFoundError:
            self._end_role()
            return None
        with self.lock:
            self.tasks.end(name, abandon_copy=True)
        return partial(self._mark, topic, monotonic() + COPY_ENDS_WITHIN_S)

    def _mark(self, topic: StoredTopicConfig, until_s: float) -> None:
        name = self.partition.topic_id_partition
        # What it copied would be found by nobody once all that is there now is marked.
        if not self.tasks.copy_has_ended(name, max(until_s - monotonic(), 0.0)):
            raise ConcurrentUpdateError(f"{name}: a copy has not ended yet; try again")
        # What it deletes here would be nowhere once the tier's log start is the local one.
        if not self.tasks.local_retention_has_ended(name, max(until_s - monotonic(), 0.0)):
            raise ConcurrentUpdateError(
                f"{name}: a pass of local retention has not ended yet; try again"
            )
        self.tier_deletion.mark_segments(self.partition, topic)
        self._end_role()
        self.tasks.run_until_done(name, self.tier_deletion.finishing(name))

    def _end_role(self) -> None:
        if self.give_up is not None:
            with self.lock:
                self.give_up()
