"""Apply the roles that a source of roles has found: the log directories, or the cluster."""

import logging
from collections.abc import Collection, Sequence
from typing import Protocol

from services.api.errors import RemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import (
    MAX_LEADERSHIP_CHANGES,
    MAX_STOPS,
    LeadershipChange,
    LeadershipDelta,
    LifecycleOutcome,
    PartitionRole,
    PartitionStops,
    StopPartition,
    StopReason,
)
from services.common.batches import batches

_log = logging.getLogger(__name__)


class RoleSink(Protocol):
    """The part of PartitionRoles that AppliedRoles uses."""

    def apply(self, delta: LeadershipDelta) -> list[LifecycleOutcome]: ...

    def stop(self, stops: PartitionStops) -> list[LifecycleOutcome]: ...


class AppliedRoles:
    """Apply roles, and record which are applied. Not thread-safe.

    Attributes:
        changes: the last applied change of each partition that was not stopped since.
    """

    def __init__(self, roles: RoleSink) -> None:
        self._roles = roles
        self.changes: dict[TopicIdPartition, LeadershipChange] = {}

    def apply(self, changes: Sequence[LeadershipChange]) -> list[RemoteStorageError]:
        """Apply changes; return the errors of those that were refused."""
        refused: list[RemoteStorageError] = []
        for batch in batches(changes, MAX_LEADERSHIP_CHANGES):
            outcomes = self._roles.apply(LeadershipDelta(batch))
            for change, outcome in zip(batch, outcomes, strict=True):
                if outcome is None:
                    self.changes[change.topic_id_partition] = change
                else:
                    refused.append(outcome)
        return refused

    def stop(
        self, names: Sequence[TopicIdPartition], reason: StopReason
    ) -> list[RemoteStorageError]:
        """Stop partitions; return the errors of those that were refused."""
        refused: list[RemoteStorageError] = []
        for batch in batches(names, MAX_STOPS):
            stops = tuple(StopPartition(name, None, reason) for name in batch)
            outcomes = self._roles.stop(PartitionStops(stops))
            for name, outcome in zip(batch, outcomes, strict=True):
                if outcome is None:
                    self.changes.pop(name, None)
                else:
                    refused.append(outcome)
        return refused


class StaticSource:
    """Treat every partition in the log directories as led here, in the epoch of its log."""

    def __init__(self, roles: RoleSink) -> None:
        _log.info(
            "tiering every topic in the log directories except internal ones; RLM cannot see there "
            "which topics are compacted: set remote.storage.enable=false for these"
        )
        self._applied = AppliedRoles(roles)

    def update(self, partitions: Collection[TopicIdPartition]) -> None:
        """Begin roles of new partitions and end roles of those that are gone."""
        applied = self._applied.changes
        self._applied.stop(
            [name for name in applied if name not in partitions], StopReason.REASSIGNED
        )
        role = PartitionRole.LEADER
        # A partition that is being disabled gets no role; the next scan retries.
        self._applied.apply(
            [LeadershipChange(name, None, role) for name in partitions if name not in applied]
        )
