"""Where it comes from which partitions this broker leads and follows.

A source tells PartitionRoles, by `apply` and `stop`, and knows nothing of what comes of it.
"""

import logging
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Protocol

from services.api.ids import TopicIdPartition
from services.api.partition_lifecycle import (
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
from services.api.remote_log_manager import Problem, ProblemKind
from services.rlm.batches import batches
from services.rlm.describe import UNKNOWN_LEADER
from services.rlm.kafka_log.errors import LogDirError
from services.rlm.kafka_log.log_dir import LogDirs, PartitionDir, find_partitions
from services.rlm.problem_lines import ToldProblems

_log = logging.getLogger(__name__)


class PartitionSource(Enum):
    """STATIC: every partition in the log directories is led here. CALLBACKS: what
    OnLeadershipChange and StopPartitions tell. POLLER: what the cluster answers
    (services/rlm/kafka_admin)."""

    STATIC = "static"
    CALLBACKS = "callbacks"
    POLLER = "poller"


class TakesRoles(Protocol):
    """PartitionRoles, as a source sees it."""

    def apply(self, delta: LeadershipDelta) -> list[LifecycleOutcome]: ...

    def stop(self, stops: PartitionStops) -> list[LifecycleOutcome]: ...


class LogDirectories:
    """The broker's log directories, as they were looked through last. Thread-safe.

    Raises:
        LogDirError: none of the directories can be used.
    """

    def __init__(self, log_dirs: Sequence[Path]) -> None:
        self._log_dirs = tuple(log_dirs)
        self._lock = threading.Lock()
        self._found = find_partitions(log_dirs) if log_dirs else LogDirs(UNKNOWN_LEADER)
        self.broker_id = self._found.broker_id
        self.problems = tuple(self._found.problems)
        self._told = ToldProblems()
        self._told.tell("the log directories", self.problems)

    @property
    def partitions(self) -> Collection[TopicIdPartition]:
        return self._found.partitions

    def folder_of(self, name: TopicIdPartition) -> PartitionDir | None:
        return self._found.partitions.get(name)

    def look(self) -> None:
        """Look through them again.

        Raises:
            LogDirError: none can be used now; what was found before stands.
        """
        with self._lock:
            try:
                found = find_partitions(self._log_dirs, self._found)
            except LogDirError as e:
                self.problems = (Problem(ProblemKind.UNREADABLE, str(e.path), e.reason),)
                raise
            self._found, self.problems = found, tuple(found.problems)
            self._told.tell("the log directories", self.problems)

    def look_for(self, names: Collection[TopicIdPartition]) -> None:
        """Look again if one of these is not known to lie here; where that cannot be done now, the
        next look finds it."""
        if self._log_dirs and any(self.folder_of(name) is None for name in names):
            with suppress(LogDirError):
                self.look()


class StaticSource:
    """Every partition that lies in the log directories is led here, in the epoch of its log."""

    def __init__(self, roles: TakesRoles) -> None:
        _log.info(
            "every topic in the log directories is tiered but internal ones; which are compacted "
            "cannot be seen there: set remote.storage.enable=false for these"
        )
        self._roles = roles
        self._told: set[TopicIdPartition] = set()

    def tell(self, found: Collection[TopicIdPartition]) -> None:
        """Of the partitions that came, and of those that went."""
        now = set(found)
        gone = [StopPartition(name, None, StopReason.REASSIGNED) for name in self._told - now]
        for stops in batches(gone, MAX_STOPS):
            self._roles.stop(PartitionStops(stops))
        self._told &= now
        role = PartitionRole.LEADER
        come = [LeadershipChange(name, None, role) for name in found if name not in self._told]
        for changes in batches(come, MAX_LEADERSHIP_CHANGES):
            outcomes = self._roles.apply(LeadershipDelta(changes))
            # What is being disabled takes no role; it is told again.
            self._told |= {
                change.topic_id_partition
                for change, outcome in zip(changes, outcomes, strict=True)
                if outcome is None
            }
