"""Begin and end the tasks of partitions as their roles change."""

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from uuid import UUID

from cachetools import LRUCache

from services.api.errors import (
    ConcurrentUpdateError,
    FencedLeaderEpochError,
    InvalidRequestError,
    ThrottledError,
)
from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import (
    LeadershipChange,
    LeadershipDelta,
    LifecycleOutcome,
    PartitionStops,
    StopPartition,
    StopReason,
)
from services.common.quantities import counted
from services.rlm.kafka_log.log_dir import LogDirectories
from services.rlm.partition import Leadership, Partition
from services.rlm.roles.disabling import Disabling
from services.rlm.roles.stopping import StepResult, TierDeletion, outcome_of, run_steps
from services.rlm.tasks import PartitionTasks

_log = logging.getLogger(__name__)


_MAX_ENDED = 10_000
_MAX_WITHOUT_ROLE = 10_000


class PartitionSource(Enum):
    """The source of roles.

    STATIC: every partition in the log directories is led here. CALLBACKS: calls of
    OnLeadershipChange and StopPartitions. POLLER: the cluster (services/rlm/kafka_admin).
    """

    STATIC = "static"
    CALLBACKS = "callbacks"
    POLLER = "poller"


class PartitionRoles:
    """Keep the roles of partitions: those this broker leads or follows. Thread-safe.

    A partition is proven once its folder was found here or RLMM lists it; before, its role has no
    tasks, no reports and no metrics, because its caller may have invented it.

    Args:
        directories: have the folders of the partitions' logs.
        new_partition: makes a partition that is new here.
        max_partitions: beyond it, a new partition needs a folder here.
    """

    def __init__(
        self,
        tasks: PartitionTasks,
        tier_deletion: TierDeletion,
        directories: LogDirectories,
        new_partition: Callable[[TopicIdPartition], Partition],
        max_partitions: int,
    ) -> None:
        self._tasks = tasks
        self._tier_deletion = tier_deletion
        self._directories = directories
        self._folder_of = directories.folder_of
        self._new_partition = new_partition
        self._max_partitions = max_partitions
        self._lock = threading.Lock()
        self._partitions: dict[TopicIdPartition, Partition] = {}
        self._unproven: set[TopicIdPartition] = set()
        # Described and read, but this broker neither leads nor follows them.
        self._without_role: LRUCache[TopicIdPartition, Partition] = LRUCache(_MAX_WITHOUT_ROLE)
        self._being_disabled: set[TopicIdPartition] = set()
        # The epochs of roles that ended: late changes with lower epochs are refused.
        self._ended_epochs: LRUCache[TopicIdPartition, int | None] = LRUCache(_MAX_ENDED)

    def partition(self, name: TopicIdPartition) -> Partition:
        """Return the partition, even if it has no role here."""
        with self._lock:
            known = self._partitions.get(name)
            if known is not None:
                return known
            partition = self._without_role.get(name)
            if partition is None:
                partition = self._without_role[name] = self._new_partition(name)
            has_log = self._folder_of(name) is not None
            partition.role.log_is_not_served = has_log
            partition.role.log_is_elsewhere = not has_log and not self._directories.are_none
            return partition

    def partitions(self) -> list[Partition]:
        with self._lock:
            return list(self._partitions.values())

    def proven(self) -> list[TopicIdPartition]:
        """Return the partitions that have a role and are known to exist."""
        with self._lock:
            return [name for name in self._partitions if name not in self._unproven]

    @property
    def has_unproven(self) -> bool:
        with self._lock:
            return bool(self._unproven)

    def leaders(self) -> list[Partition]:
        """Return the partitions that are led and proven."""
        with self._lock:
            return [
                partition
                for name, partition in self._partitions.items()
                if partition.role.is_leader and name not in self._unproven
            ]

    def update_folders(self) -> None:
        """Update the folders after a scan: a log may be new, moved or gone."""
        with self._lock:
            for name, partition in self._partitions.items():
                partition.move_to(self._folder_of(name))
            self._begin_proven(name for name in self._unproven if self._folder_of(name))
            self._drop_false(self._true_names())

    def prove(self, listed: Iterable[TopicIdPartition]) -> None:
        """Begin the tasks of partitions that RLMM lists; drop roles under names it contradicts."""
        with self._lock:
            ids = {name.topic_id for name in self._unproven}
        known = {name for name in listed if name.topic_id in ids}
        with self._lock:
            self._begin_proven(known & self._unproven)
            self._drop_false({name.topic_id: name.topic for name in known} | self._true_names())

    def _begin_proven(self, names: Iterable[TopicIdPartition]) -> None:
        for name in list(names):
            self._unproven.discard(name)
            self._ensure_tasks(name)

    def _drop_false(self, true_names: Mapping[UUID, str]) -> None:
        """Forget unproven partitions whose topic id has another name."""
        unproven = self._unproven
        false = [n for n in unproven if true_names.get(n.topic_id, n.topic) != n.topic]
        for name in false:
            unproven.discard(name)
            del self._partitions[name]
        if false:
            _log.warning(
                "dropped the roles of %s, sent under false topic names; one is %s",
                counted(len(false), "partition"),
                false[0],
            )

    def _true_names(self) -> dict[UUID, str]:
        """Return the names of topics by id, as folders here and proven partitions have them."""
        proven = {n.topic_id: n.topic for n in self._partitions if n not in self._unproven}
        return proven | {name.topic_id: name.topic for name in self._directories.partitions}

    def false_names(
        self, names: Sequence[TopicIdPartition], field: str
    ) -> dict[TopicIdPartition, InvalidRequestError]:
        """Return an error for each partition whose topic id is known to have another name.

        An unproven partition contradicts none: its name may be the false one.

        Args:
            field: of the request, the list whose items have the names.
        """
        with self._lock:
            true_names = self._true_names()
        sent: dict[UUID, set[str]] = {}
        for name in names:
            sent.setdefault(name.topic_id, set()).add(name.topic)
        return {
            # Without the right name: the caller may not be allowed to use that topic.
            name: InvalidRequestError(
                f"{field}[{index}].topic_id_partition.topic: {name} has the topic id of another "
                "topic; send its name"
            )
            for index, name in enumerate(names)
            if self._folder_of(name) is None and not _is_only_name(name, true_names, sent)
        }

    def apply(self, delta: LeadershipDelta) -> list[LifecycleOutcome]:
        """Apply changes of roles, as in RemoteLogManager.on_leadership_change."""
        with self._lock:
            outcomes = [self._apply(change) for change in delta.changes]
            if self._unproven:
                self._drop_false(self._true_names())
            return outcomes

    def stop(self, stops: PartitionStops) -> list[LifecycleOutcome]:
        """Stop partitions, as in RemoteLogManager.stop_partitions."""
        a_name = stops.partitions[0].topic_id_partition
        return self._in_steps(
            a_name, lambda disabled: [self._begin_stop(each, disabled) for each in stops.partitions]
        )

    def set_stable_offsets(self, offsets: Mapping[TopicIdPartition, int]) -> None:
        """Replace the last stable offsets by those of the latest poll."""
        with self._lock:
            for name, partition in self._partitions.items():
                partition.role.stable_offset = offsets.get(name)

    def disable(self, names: Sequence[TopicIdPartition]) -> list[LifecycleOutcome]:
        """Delete the tiered data of led partitions if the settings in RLMM disable tiering.

        Return one outcome per partition, in order. Roles stay and their tasks restart.
        """
        try:
            return self._in_steps(
                names[0], lambda disabled: [self._begin_by_settings(n, disabled) for n in names]
            )
        finally:
            with self._lock:
                for name in names:
                    self._ensure_tasks(name)

    def _in_steps(
        self, a_name: TopicIdPartition, begin: Callable[[set[TopicIdPartition]], list[StepResult]]
    ) -> list[LifecycleOutcome]:
        """Do all steps of a stop.

        Args:
            begin: returns the first steps; adds to its argument the partitions that get no role
                before the last step.
        """
        disabled: set[TopicIdPartition] = set()
        try:
            with self._lock:
                results = begin(disabled)
            # Two steps: all tasks are ended before the first wait for one.
            is_ready = partial(self._tier_deletion.rlmm.is_ready, a_name)
            for _ in range(2):
                results = run_steps(results, is_ready)
            return [outcome_of(each) for each in results]
        finally:
            with self._lock:
                self._being_disabled -= disabled

    def _apply(self, change: LeadershipChange) -> LifecycleOutcome:
        name = change.topic_id_partition
        stale = self._stale(name, change.leader_epoch)
        if stale is not None:
            return stale
        if name in self._being_disabled:
            return ConcurrentUpdateError(f"{name}: its tiering is being disabled; retry")
        leadership = Leadership(change.role, change.leader_epoch)
        known = self._partitions.get(name)
        if known is not None and known.role.leadership is not None and self._tasks.has(name):
            if known.role.leadership.role is change.role:
                known.role.leadership = leadership
                return None
            self._tasks.end(name)
        folder = self._folder_of(name)
        if known is None and folder is None:
            if len(self._partitions) >= self._max_partitions:
                return ThrottledError(
                    f"{name}: its log is not in RLM_LOG_DIRS, and {len(self._partitions)} "
                    f"partitions have a role here (limit {self._max_partitions}); retry when the "
                    "broker has created the log"
                )
            self._unproven.add(name)
        partition = known or self._new_partition(name)
        partition.move_to(folder)
        partition.begin_role(leadership)
        self._partitions[name] = partition
        self._ended_epochs.pop(name, None)
        if folder is not None:
            self._unproven.discard(name)
        self._ensure_tasks(name)
        return None

    def _stale(self, name: TopicIdPartition, epoch: int | None) -> FencedLeaderEpochError | None:
        latest = self._latest_epoch(name)
        if epoch is None or latest is None or epoch >= latest:
            return None
        return FencedLeaderEpochError(
            f"{name}: leader epoch {epoch} is older than {latest}, which is known here; "
            "nothing was changed"
        )

    def _latest_epoch(self, name: TopicIdPartition) -> int | None:
        """Return the leader epoch of the partition's role here, or of its last one."""
        known = self._partitions.get(name)
        leadership = None if known is None else known.role.leadership
        return self._ended_epochs.get(name) if leadership is None else leadership.leader_epoch

    def _begin_stop(self, stop: StopPartition, disabled: set[TopicIdPartition]) -> StepResult:
        """Return the first step of a stop; add to `disabled` if no role may begin meanwhile."""
        name = stop.topic_id_partition
        stale = self._stale(name, stop.leader_epoch)
        if stale is not None:
            return stale
        if stop.reason is StopReason.TIERING_DISABLED:
            return self._begin_disabling(stop, disabled)
        deleted = stop.reason is StopReason.TOPIC_DELETED
        self._end_role(stop, abandon_copy=deleted)
        if not deleted:
            return None
        return partial(self._tier_deletion.mark_partition, name, stop.leader_epoch)

    def _begin_disabling(self, stop: StopPartition, disabled: set[TopicIdPartition]) -> StepResult:
        name = stop.topic_id_partition
        if name in self._being_disabled:
            return ConcurrentUpdateError(f"{name}: another call is disabling it; retry")
        known = self._partitions.get(name)
        if known is not None and known.role.is_leader:
            return self._disabling(known, stop, disabled)
        if known is None and name not in self._ended_epochs:
            return partial(self._finish_marked, name)
        self._end_role(stop, abandon_copy=True)
        return None

    def _begin_by_settings(
        self, name: TopicIdPartition, disabled: set[TopicIdPartition]
    ) -> StepResult:
        known = self._partitions.get(name)
        if known is None or not known.role.is_leader or name in self._being_disabled:
            return None  # Its role or another call has changed that.
        return self._disabling(known, None, disabled)

    def _disabling(
        self, partition: Partition, stop: StopPartition | None, disabled: set[TopicIdPartition]
    ) -> StepResult:
        """Return the first step of disabling; without `stop`, the role stays."""
        name = partition.topic_id_partition
        disabled.add(name)
        self._being_disabled.add(name)
        end_role = None if stop is None else partial(self._end_role, stop, abandon_copy=True)
        return Disabling(partition, self._tasks, self._tier_deletion, self._lock, end_role).begin

    def _ensure_tasks(self, name: TopicIdPartition) -> None:
        partition = self._partitions.get(name)
        if partition is None or name in self._unproven or self._tasks.has(name):
            return
        self._tasks.begin(partition)

    def _finish_marked(self, name: TopicIdPartition) -> None:
        self._tier_deletion.require_no_segments(name)
        self._tasks.run_until_done(name, self._tier_deletion.finishing(name))

    def _end_role(self, stop: StopPartition, *, abandon_copy: bool) -> None:
        name = stop.topic_id_partition
        epochs = [e for e in (self._latest_epoch(name), stop.leader_epoch) if e is not None]
        self._ended_epochs[name] = max(epochs, default=None)
        self._partitions.pop(name, None)
        self._unproven.discard(name)
        self._tasks.end(name, abandon_copy=abandon_copy)


def _is_only_name(
    name: TopicIdPartition, true_names: Mapping[UUID, str], sent: Mapping[UUID, Collection[str]]
) -> bool:
    """Return whether a topic id's name is true or, if that is unknown, the only one of the call."""
    true_name = true_names.get(name.topic_id)
    return len(sent[name.topic_id]) == 1 if true_name is None else true_name == name.topic
