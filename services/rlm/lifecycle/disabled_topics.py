"""Finds out what tiering was disabled of, where no broker tells: a topic whose settings say
`remote.storage.enable=false` and `remote.log.delete.on.disable=true` is deleted from the tier.

Source: KIP-950; there the broker learns it with the topic's configuration.
"""

import logging
from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from cachetools import LRUCache

from services.api.errors import (
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.api.ids import TopicIdPartition
from services.api.partition_lifecycle import MAX_STOPS, LifecycleOutcome
from services.api.segments import RemoteLogSegmentState
from services.rlm.batches import batches
from services.rlm.ending import Flag
from services.rlm.lifecycle.tier_deletion import kept_because
from services.rlm.partition import Partition
from services.rlm.scheduler import PassFailedError
from services.rlm.tier_view.tier import Tier
from services.rlm.topic_configs import TopicConfigs

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
