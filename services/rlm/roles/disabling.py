"""Disable the tiering of partitions, by a call or by the settings of their topics."""

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
from services.api.topic_config import StoredTopicConfig, kept_because
from services.common.cancellation import Flag
from services.rlm.partition import Partition
from services.rlm.roles.stopping import Left, TierDeletion
from services.rlm.scheduler import PassFailedError
from services.rlm.tasks import PartitionTasks
from services.rlm.tier import Tier
from services.rlm.topic_configs import TopicConfigs
from services.workflows.deletion import batches

COPY_ENDS_WITHIN_S = 10.0
_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_MAX_LOGGED = 10_000
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Disabling:
    """Disable the tiering of one partition, step by step.

    Attributes:
        lock: of the roles; held during `give_up` and while tasks are ended.
        give_up: ends the role after everything is marked; None if the topic's settings disabled
            tiering, and the role stays.
    """

    partition: Partition
    tasks: PartitionTasks
    tier_deletion: TierDeletion
    lock: AbstractContextManager[object]
    give_up: Callable[[], None] | None

    def begin(self) -> Left:
        """End the tasks, if the settings in RLMM allow the deletion now."""
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
        # A segment that is copied after the marking would stay in the tier for ever.
        if not self.tasks.copy_has_ended(name, max(until_s - monotonic(), 0.0)):
            raise ConcurrentUpdateError(f"{name}: a copy is still running; retry")
        self.tier_deletion.mark_segments(self.partition, topic)
        self._end_role()
        self.tasks.run_until_done(name, self.tier_deletion.finishing(name))

    def _end_role(self) -> None:
        if self.give_up is not None:
            with self.lock:
                self.give_up()


class DisablesPartitions(Protocol):
    """The part of PartitionRoles that DisabledTopics uses."""

    def leaders(self) -> list[Partition]: ...

    def disable(self, names: Sequence[TopicIdPartition]) -> list[LifecycleOutcome]: ...


class DisabledTopics:
    """Find led partitions that are disabled and still in the tier, and disable them.

    The settings are read again before that, because the cached ones may be an interval old. A
    partition with nothing in the tier is skipped, so that a disabled topic costs nothing. Not
    thread-safe.

    Args:
        stopping: once set, disable no other partition.
    """

    def __init__(
        self, roles: DisablesPartitions, topic_configs: TopicConfigs, stopping: Flag
    ) -> None:
        self._roles = roles
        self._topic_configs = topic_configs
        self._stopping = stopping
        self._logged: LRUCache[UUID, str] = LRUCache(_MAX_LOGGED)

    def disable_found(self) -> None:
        """Disable the partitions that were found.

        Raises:
            PassFailedError: if some could not be marked for deletion; the next pass retries.
        """
        refused: list[RemoteStorageError] = []
        for names in batches(self._to_disable(refused), MAX_STOPS):
            if self._stopping.is_set():
                return
            for name, outcome in zip(names, self._roles.disable(names), strict=True):
                if outcome is not None:
                    self._topic_configs.forget(name.topic_id)
                    refused.append(outcome)
        if refused:
            raise PassFailedError(
                f"{len(refused)} disabled partitions are still in the tier; the first: {refused[0]}"
            )

    def _to_disable(self, refused: list[RemoteStorageError]) -> list[TopicIdPartition]:
        """Return the partitions to disable; add to `refused` the errors of reading settings."""
        to_disable: list[TopicIdPartition] = []
        is_disabled: dict[UUID, bool] = {}
        for partition in self._roles.leaders():
            name = partition.topic_id_partition
            if not _is_in_tier(partition.tier.cached):
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
                to_disable.append(name)
        return to_disable

    def _is_disabled(self, name: TopicIdPartition) -> bool:
        """Return whether the topic is disabled and may be deleted, by the cached settings."""
        try:
            config = self._topic_configs.of(name.topic_id).config
        except RemoteResourceNotFoundError:
            return False
        is_disabled = config.remote_storage_enable is False
        reason = kept_because(config) if is_disabled else ""
        if reason and reason != self._logged.get(name.topic_id):
            _log.info("topic %s: tiering is disabled; %s", name.topic, reason)
        self._logged[name.topic_id] = reason
        return is_disabled and not reason


def _is_in_tier(tier: Tier) -> bool:
    """Return whether the tier has segments that are not marked for deletion.

    Retention finishes the marked ones.
    """
    return tier.segments > 0 or any(segment.state is _STARTED for segment in tier.unfinished)
