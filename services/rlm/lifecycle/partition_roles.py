"""Who has which role: what sources of partitions tell, turned into tasks that begin and end.

    source            the log directories, or whoever calls OnLeadershipChange and StopPartitions
      │ apply, stop
      ▼
    PartitionRoles    each partition's role and leader epoch
      │ begin, end
      ▼
    PartitionTasks    copy and expiration, or follower, in their pools

Source: RemoteLogManager.onLeadershipChange, stopPartitions.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic
from uuid import UUID

from cachetools import LRUCache

from services.api.errors import (
    ConcurrentUpdateError,
    FencedLeaderEpochError,
    InvalidRequestError,
    RemoteResourceNotFoundError,
)
from services.api.ids import TopicIdPartition
from services.api.partition_lifecycle import (
    LeadershipChange,
    LeadershipDelta,
    LifecycleOutcome,
    PartitionStops,
    StopPartition,
    StopReason,
)
from services.api.topic_config import StoredTopicConfig
from services.rlm.kafka_log.log_dir import PartitionDir
from services.rlm.leadership import Leadership
from services.rlm.lifecycle.partition_tasks import PartitionTasks
from services.rlm.lifecycle.stop_steps import Left, outcome_of, take_steps
from services.rlm.lifecycle.tier_deletion import TierDeletion
from services.rlm.partition import Partition

COPY_ENDS_WITHIN_S = 10.0

_MAX_GIVEN_UP = 10_000
_log = logging.getLogger(__name__)


class PartitionRoles:
    """The partitions that this broker leads or follows. Thread-safe.

    Args:
        folder_of: where a partition's log lies; None: nowhere.
        made: a partition that is known for the first time.
    """

    def __init__(
        self,
        tasks: PartitionTasks,
        tier_deletion: TierDeletion,
        folder_of: Callable[[TopicIdPartition], PartitionDir | None],
        made: Callable[[TopicIdPartition], Partition],
    ) -> None:
        self._tasks = tasks
        self._tier_deletion = tier_deletion
        self._folder_of = folder_of
        self._made = made
        self._lock = threading.Lock()
        self._partitions: dict[TopicIdPartition, Partition] = {}
        self._being_disabled: set[TopicIdPartition] = set()
        # So that what was told before a partition was given up, and comes after it, is known.
        self._given_up: LRUCache[TopicIdPartition, int | None] = LRUCache(_MAX_GIVEN_UP)

    def partition(self, name: TopicIdPartition) -> Partition | None:
        with self._lock:
            return self._partitions.get(name)

    def partitions(self) -> list[Partition]:
        with self._lock:
            return list(self._partitions.values())

    def leaders(self) -> list[Partition]:
        return [p for p in self.partitions() if p.leadership is not None and p.leadership.is_leader]

    def look_for_folders(self) -> None:
        """The log directories were looked through: a log may have come, moved, or gone."""
        with self._lock:
            for name, partition in self._partitions.items():
                partition.move_to(self._folder_of(name))

    def require_one_name(self, names: Iterable[TopicIdPartition]) -> None:
        """
        Raises:
            InvalidRequestError: a topic id has another name here, or two among `names`.
        """
        with self._lock:
            topics: dict[UUID, str] = {name.topic_id: name.topic for name in self._partitions}
        for name in names:
            topic = topics.setdefault(name.topic_id, name.topic)
            if topic != name.topic:
                raise InvalidRequestError(
                    f"topic: {name} has the id of topic {topic}; a topic keeps its name"
                )

    def apply(self, delta: LeadershipDelta) -> list[LifecycleOutcome]:
        """As PartitionLifecycle.on_leadership_change."""
        with self._lock:
            return [self._apply(change) for change in delta.changes]

    def stop(self, stops: PartitionStops) -> list[LifecycleOutcome]:
        """As PartitionLifecycle.stop_partitions."""
        disabled: set[TopicIdPartition] = set()
        try:
            with self._lock:
                left = [self._begin_stop(stop, disabled) for stop in stops.partitions]
            # Two steps: the tasks of all that are disabled have ended before one is waited for.
            is_ready = partial(
                self._tier_deletion.is_rlmm_ready, stops.partitions[0].topic_id_partition
            )
            for _ in range(2):
                left = take_steps(left, is_ready)
            return [outcome_of(each) for each in left]
        finally:
            with self._lock:
                self._being_disabled -= disabled

    def _apply(self, change: LeadershipChange) -> LifecycleOutcome:
        name = change.topic_id_partition
        stale = self._stale(name, change.leader_epoch)
        if stale is not None:
            return stale
        if name in self._being_disabled:
            return ConcurrentUpdateError(f"{name}: its tiering is being disabled; try again")
        leadership = Leadership(change.role, change.leader_epoch)
        known = self._partitions.get(name)
        if known is not None and known.leadership is not None and self._tasks.has(name):
            if known.leadership.role is change.role:
                known.leadership = leadership
                return None
            self._tasks.end(name)
        partition = known or self._made(name)
        partition.move_to(self._folder_of(name))
        partition.take_role(leadership)
        self._partitions[name] = partition
        self._given_up.pop(name, None)
        self._tasks.begin(partition)
        return None

    def _stale(self, name: TopicIdPartition, epoch: int | None) -> FencedLeaderEpochError | None:
        known = self._partitions.get(name)
        leadership = None if known is None else known.leadership
        latest = self._given_up.get(name) if leadership is None else leadership.leader_epoch
        if epoch is None or latest is None or epoch >= latest:
            return None
        return FencedLeaderEpochError(
            f"{name}: leader epoch {epoch} is older than {latest}, which is known here; nothing "
            "was changed"
        )

    def _begin_stop(self, stop: StopPartition, disabled: set[TopicIdPartition]) -> Left:
        """
        Args:
            disabled: those of the call that take no role before it returns; it is added to.
        """
        name = stop.topic_id_partition
        stale = self._stale(name, stop.leader_epoch)
        if stale is not None:
            return stale
        if stop.reason is StopReason.TIERING_DISABLED:
            return self._begin_disabling(stop, disabled)
        deleted = stop.reason is StopReason.TOPIC_DELETED
        self._give_up(stop, abandon_copy=deleted)
        if not deleted:
            return None
        return partial(self._tier_deletion.mark_partition, name, stop.leader_epoch)

    def _begin_disabling(self, stop: StopPartition, disabled: set[TopicIdPartition]) -> Left:
        name = stop.topic_id_partition
        if name in self._being_disabled:
            return ConcurrentUpdateError(f"{name}: another call is disabling it; try again")
        known = self._partitions.get(name)
        if known is not None and known.leadership is not None and known.leadership.is_leader:
            disabled.add(name)
            self._being_disabled.add(name)
            return partial(self._end_tasks, known, stop)
        if known is None and name not in self._given_up:
            return partial(self._finish_what_is_marked, name)
        self._give_up(stop, abandon_copy=True)
        return None

    def _finish_what_is_marked(self, name: TopicIdPartition) -> None:
        self._tier_deletion.require_nothing_left(name)
        self._tasks.run_until_done(name, self._tier_deletion.finishing(name))

    def _end_tasks(self, partition: Partition, stop: StopPartition) -> Left:
        """End the tasks of a partition that may be disabled."""
        name = partition.topic_id_partition
        try:
            topic = self._tier_deletion.require_allowed(name)
        except RemoteResourceNotFoundError:
            with self._lock:
                self._give_up(stop, abandon_copy=True)
            return None
        with self._lock:
            self._tasks.end(name, abandon_copy=True)
        return partial(self._disable, partition, stop, topic, monotonic() + COPY_ENDS_WITHIN_S)

    def _disable(
        self, partition: Partition, stop: StopPartition, topic: StoredTopicConfig, until_s: float
    ) -> None:
        name = partition.topic_id_partition
        # What it copied would be found by nobody once all that is there now is marked.
        if not self._tasks.copy_has_ended(name, max(until_s - monotonic(), 0.0)):
            raise ConcurrentUpdateError(f"{name}: a copy has not ended yet; try again")
        # What it deletes here would be nowhere once the tier's log start is the local one.
        if not self._tasks.local_retention_has_ended(name, max(until_s - monotonic(), 0.0)):
            raise ConcurrentUpdateError(
                f"{name}: a pass of local retention has not ended yet; try again"
            )
        self._tier_deletion.mark_segments(partition, topic)
        with self._lock:
            self._give_up(stop, abandon_copy=True)
        self._tasks.run_until_done(name, self._tier_deletion.finishing(name))

    def _give_up(self, stop: StopPartition, *, abandon_copy: bool) -> None:
        name = stop.topic_id_partition
        known = self._partitions.pop(name, None)
        leadership = None if known is None else known.leadership
        told = self._given_up.get(name) if leadership is None else leadership.leader_epoch
        epochs = [epoch for epoch in (told, stop.leader_epoch) if epoch is not None]
        self._given_up[name] = max(epochs, default=None)
        self._tasks.end(name, abandon_copy=abandon_copy)
