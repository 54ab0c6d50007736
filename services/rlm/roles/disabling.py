"""Disable the tiering of a partition, step by step."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from time import monotonic

from services.api.errors import ConcurrentUpdateError, RemoteResourceNotFoundError
from services.api.topic_config import StoredTopicConfig
from services.rlm.partition import Partition
from services.rlm.roles.stopping import StepResult, TierDeletion
from services.rlm.tasks import PartitionTasks

COPY_ENDS_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Disabling:
    """The steps that disable the tiering of one partition.

    Attributes:
        lock: of the roles; held during `end_role` and while tasks are ended.
        end_role: ends the role after everything is marked; None if the topic's settings disabled
            tiering, and the role stays.
    """

    partition: Partition
    tasks: PartitionTasks
    tier_deletion: TierDeletion
    lock: AbstractContextManager[object]
    end_role: Callable[[], None] | None

    def begin(self) -> StepResult:
        """End the tasks, if the settings in RLMM allow the deletion now."""
        name = self.partition.topic_id_partition
        try:
            topic = self.tier_deletion.require_allowed(name, by_settings=self.end_role is None)
        except RemoteResourceNotFoundError:
            self._end_role()
            return None
        with self.lock:
            self.tasks.end(name, abandon_copy=True)
        return partial(self._mark, topic, monotonic() + COPY_ENDS_WITHIN_S)

    def _mark(self, topic: StoredTopicConfig, until_s: float) -> None:
        name = self.partition.topic_id_partition
        # A segment that is copied after the marking would stay in the tier for ever.
        if not self.tasks.copy_has_ended(name, max(until_s - monotonic(), 0.0)):
            raise ConcurrentUpdateError(f"{name}: a copy is still running; retry")
        self.tier_deletion.mark_segments(self.partition, topic)
        self._end_role()
        self.tasks.run_until_done(name, self.tier_deletion.finishing(name))

    def _end_role(self) -> None:
        if self.end_role is not None:
            with self.lock:
                self.end_role()
