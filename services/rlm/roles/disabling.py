"""Delete the tier of partitions whose tiering was disabled."""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Protocol
from uuid import UUID

from cachetools import LRUCache

from services.api.errors import (
    ConcurrentUpdateError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import MAX_STOPS, LifecycleOutcome
from services.api.segments import RemoteLogSegmentState
from services.api.topic_config import StoredTopicConfig
from services.common.cancellation import Flag
from services.rlm.partition import Partition
from services.rlm.roles.stopping import Left, TierDeletion, kept_because
from services.rlm.roles.tasks import PartitionTasks
from services.rlm.scheduler import PassFailedError
from services.rlm.tier_state import Tier
from services.rlm.topic_configs import TopicConfigs
from services.workflows.paging import batches

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


_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_MAX_SAID = 10_000
_log = logging.getLogger(__name__)


class DisablesPartitions(Protocol):
    """PartitionRoles, as it is seen here."""

    def leaders(self) -> list[Partition]: ...

    def disable(self, names: Sequence[TopicIdPartition]) -> list[LifecycleOutcome]: ...


class DisabledTopics:
    """Looks, again and again, for what is led here, is disabled, and is in the tier still. Of what
    is found the settings are asked for anew: those that are known here may be an interval old.

    A partition of which nothing is in the tier is left alone, so that what was disabled once costs
    nothing. Not thread-safe.

    Args:
        stopping: set: nothing new begins.
    """

    def __init__(
        self, roles: DisablesPartitions, topic_configs: TopicConfigs, stopping: Flag
    ) -> None:
        self._roles = roles
        self._topic_configs = topic_configs
        self._stopping = stopping
        self._said: LRUCache[UUID, str] = LRUCache(_MAX_SAID)

    def look(self) -> None:
        """
        Raises:
            PassFailedError: not all that is disabled could be marked for deletion; the next look
                finds it again.
            RetriableRemoteStorageError: RLMM cannot be reached.
        """
        refused: list[RemoteStorageError] = []
        for names in batches(self._found(refused), MAX_STOPS):
            if self._stopping.is_set():
                return
            for name, outcome in zip(names, self._roles.disable(names), strict=True):
                if outcome is not None:
                    self._topic_configs.forget(name.topic_id)
                    refused.append(outcome)
        if refused:
            raise PassFailedError(
                f"{len(refused)} disabled partitions are in the tier still; the first: {refused[0]}"
            )

    def _found(self, refused: list[RemoteStorageError]) -> list[TopicIdPartition]:
        """
        Args:
            refused: why it is not known of some; it is added to.
        """
        found: list[TopicIdPartition] = []
        is_disabled: dict[UUID, bool] = {}
        for partition in self._roles.leaders():
            name = partition.topic_id_partition
            if not _is_in_tier(partition.tier.last_seen):
                continue
            if name.topic_id not in is_disabled:
                try:
                    is_disabled[name.topic_id] = self._is_disabled(name)
                except RetriableRemoteStorageError:
                    raise
                except RemoteStorageError as e:
                    is_disabled[name.topic_id] = False
                    refused.append(e)
            if is_disabled[name.topic_id]:
                found.append(name)
        return found

    def _is_disabled(self, name: TopicIdPartition) -> bool:
        """Whether the topic is, and may be deleted; by the settings of a short while ago."""
        try:
            config = self._topic_configs.of(name.topic_id).config
        except RemoteResourceNotFoundError:
            return False
        is_disabled = config.remote_storage_enable is False
        reason = kept_because(config) if is_disabled else ""
        if reason and reason != self._said.get(name.topic_id):
            _log.info("topic %s: tiering is disabled, the tier stays: %s", name.topic, reason)
        self._said[name.topic_id] = reason
        return is_disabled and not reason


def _is_in_tier(tier: Tier) -> bool:
    """Whether anything is that is not marked for deletion; that is finished by retention."""
    return tier.segments > 0 or any(segment.state is _STARTED for segment in tier.unfinished)
