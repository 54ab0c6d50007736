"""Poll the cluster for leaders and followers, and apply role changes."""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from services.api.errors import RemoteStorageError
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.remote_log_manager import (
    LeadershipChange,
    PartitionRole,
    StopReason,
)
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, all_partitions
from services.rlm.kafka_admin.cluster_view import (
    ClusterAdmin,
    ClusterUnreachableError,
    ClusterView,
    PartitionView,
)
from services.rlm.kafka_admin.deleted_topics import (
    Doubt,
    RecalledTopics,
    TopicName,
    confirmed,
    watched_after,
)
from services.rlm.kafka_admin.local_records import LocalRecordsAdmin
from services.rlm.kafka_admin.polled_logs import Leader, PolledLogs
from services.rlm.kafka_log.log_dir import LogDirectories
from services.rlm.roles.partition_roles import PartitionRoles
from services.rlm.roles.sources import AppliedRoles
from services.rlm.scheduler import PassFailedError

Roles = Mapping[TopicIdPartition, LeadershipChange]
"""The last applied change of each partition."""


_Refusals = list[RemoteStorageError]
_log = logging.getLogger(__name__)

RECALL_EVERY_POLLS = 10
"""Without log directories, RLMM alone knows which topics the cluster's brokers tier."""


@dataclass(frozen=True, slots=True)
class RoleChanges:
    """The role changes that make the applied roles equal to a view.

    Attributes:
        changes: roles to begin, or to keep under a later leader epoch.
        reassigned: partitions that are no longer this broker's.
    """

    changes: tuple[LeadershipChange, ...] = ()
    reassigned: tuple[TopicIdPartition, ...] = ()


def role_changes(
    applied: Roles, local: Iterable[TopicIdPartition], view: ClusterView, broker_id: int
) -> RoleChanges:
    """Compare the applied roles with `view`.

    A partition keeps its role if the view is not sufficient: its topic is not visible or has
    another id, or the partition has no leader now. deleted_topics.py decides whether a topic was
    deleted.

    Args:
        local: the partitions whose logs are in the log directories.
    """
    changes, reassigned = [], []
    for name in sorted({*applied, *local}):
        found = _partition_of(view, name)
        before = applied.get(name)
        if found is None:
            continue
        if broker_id not in found.replicas:
            if before is not None:
                reassigned.append(name)
            continue
        change = _change(name, before, found, broker_id)
        if change is not None:
            changes.append(change)
    return RoleChanges(tuple(changes), tuple(reassigned))


def led_epochs(applied: Roles, view: ClusterView, broker_id: int) -> dict[TopicIdPartition, int]:
    """List the leader epochs of the partitions that this broker leads.

    The broker leads them by the applied roles and by `view`. A topic's name appears with one id.
    """
    led = {}
    for name, change in applied.items():
        found = _partition_of(view, name)
        if found is not None and found.leader == broker_id and change.leader_epoch is not None:
            led[name] = change.leader_epoch
    return led


def led_by_brokers(
    topics: Iterable[TopicName], view: ClusterView
) -> dict[TopicIdPartition, Leader]:
    """List the partitions of these topics that have a leader by `view`."""
    led = {}
    for topic in topics:
        found = view.topic(topic.topic_id, topic.name)
        for number, partition in found.partitions.items() if found is not None else ():
            if partition.leader is not None and partition.leader_epoch is not None:
                name = TopicIdPartition(topic.topic_id, topic.name, number)
                led[name] = Leader(partition.leader, partition.leader_epoch)
    return led


def _partition_of(view: ClusterView, name: TopicIdPartition) -> PartitionView | None:
    topic = view.topic(name.topic_id, name.topic)
    return None if topic is None else topic.partitions.get(name.partition)


def _change(
    name: TopicIdPartition, before: LeadershipChange | None, view: PartitionView, broker_id: int
) -> LeadershipChange | None:
    if view.leader is None:
        return None
    if view.leader != broker_id:
        # A follower acts under no leader epoch; it reads one from the log when needed.
        follower = LeadershipChange(name, None, PartitionRole.FOLLOWER)
        return None if before == follower else follower
    epoch = view.leader_epoch
    # Without its own epoch, a deposed leader would continue under the next leader's epoch, which
    # it replicates into its log.
    if epoch is None:
        return None
    if before is not None and before.leader_epoch is not None and epoch < before.leader_epoch:
        return None  # an old answer
    leader = LeadershipChange(name, epoch, PartitionRole.LEADER)
    return None if before == leader else leader


@dataclass(frozen=True, slots=True)
class PolledCluster:
    """The cluster that a broker belongs to.

    Attributes:
        registered_id: of the broker's log directories, or of RLM's settings without directories;
            answers of another cluster are refused.
        confirm_s: how long the cluster must answer that a topic does not exist, before it counts as
            deleted.
        local_records: deletes local records, and changes who does; None: RLM never does.
    """

    admin: ClusterAdmin
    registered_id: str
    confirm_s: float
    local_records: LocalRecordsAdmin | None = None


class ClusterPoller:
    """Apply the roles that the cluster returns, and mark deleted topics.

    Without log directories no partition has a role here: the poller only watches the topics that
    RLMM knows as this cluster's. After a restart it counts again, and reads the topics from RLMM.

    Args:
        clock: monotonic seconds.
        polled_logs: reports the logs of the watched topics; None with log directories, whose
            leaders report.
    """

    def __init__(
        self,
        cluster: PolledCluster,
        directories: LogDirectories,
        roles: PartitionRoles,
        rlmm: RemoteLogMetadataManager,
        clock: Callable[[], float] = time.monotonic,
        polled_logs: PolledLogs | None = None,
    ) -> None:
        self._cluster = cluster
        self._directories = directories
        self._roles = roles
        self._rlmm = rlmm
        self._clock = clock
        self._applied = AppliedRoles(roles)
        self._directory_ids = directories.directory_ids
        self._watch_again()
        self._registered_by = "RLM_CLUSTER_ID" if directories.are_none else "RLM_LOG_DIRS"
        self._polled_logs = polled_logs

    def _watch_again(self) -> None:
        """Watch topics as after a start."""
        self._watched: dict[TopicName, Doubt | None] = {}
        every_polls = RECALL_EVERY_POLLS if self._directories.are_none else None
        registered = self._cluster.registered_id
        self._recalled = RecalledTopics(self._rlmm, registered, every_polls=every_polls)
        self._known_by_rlmm: set[TopicName] = set()
        """Watched topics that were this cluster's by RLMM alone."""

    def poll(self) -> None:
        """Poll once and apply the changes.

        If the cluster does not answer, or another cluster does, the roles stay.

        Raises:
            PassFailedError: if the cluster does not answer, or not every change was applied.
        """
        try:
            self._directories.scan()
            self._notice_formatting()
            local = frozenset(self._directories.partitions)
            view = self._view(local)
        except BaseException:
            self._update_watched(None, ())
            self._roles.set_stable_offsets({})
            raise
        if self._directories.are_none:
            self._update_watched(view, self._existing(view))
        else:
            self._update_watched(view, {_topic_of(name) for name in local})
        refused = [*self._apply(local, view), *self._stop_deleted()]
        failures = [f"{len(refused)} role changes failed; the first: {e}" for e in refused[:1]]
        failures += [*self._recall(), *self._read_stable_offsets(view)]
        failures += [] if failures else self._report_logs(view)
        if failures:
            raise PassFailedError(failures[0])

    def _notice_formatting(self) -> None:
        """Forget what this process saw alive before a log directory was formatted.

        A cluster that is formatted again under its id has none of its earlier topics, and the tier
        may have the last copy: only RLMM's record decides then, as after a start.
        """
        before, self._directory_ids = self._directory_ids, self._directories.directory_ids
        if before and self._directory_ids - before:
            _log.warning(
                "a log directory was formatted while RLM runs; topics that the cluster no longer "
                "has count as deleted only if it has others that RLMM has known for as long"
            )
            self._watch_again()

    def _view(self, local: Collection[TopicIdPartition]) -> ClusterView:
        names = {name.topic for name in local} | {name.topic for name in self._applied.changes}
        names |= {topic.name for topic in self._watched} | self._recalled.names
        registered = self._cluster.registered_id
        try:
            view = self._cluster.admin.view(names)
        except ClusterUnreachableError as e:
            raise PassFailedError(f"cannot poll the cluster for leaders: {e}") from e
        if view.cluster_id != registered:
            raise PassFailedError(
                f"RLM_BOOTSTRAP_SERVERS is of cluster {view.cluster_id}, "
                f"{self._registered_by} of cluster {registered}; correct one of them"
            )
        return view

    def _read_stable_offsets(self, view: ClusterView) -> list[str]:
        """Read the last stable offsets of led partitions; return the failure, if any.

        Without an answer, the log and the broker's checkpoints are the only bounds.
        """
        offsets: Mapping[TopicIdPartition, int] = {}
        epochs = led_epochs(self._applied.changes, view, self._directories.broker_id)
        try:
            if epochs:
                offsets = self._cluster.admin.stable_offsets(self._directories.broker_id, epochs)
        except ClusterUnreachableError as e:
            return [f"cannot read last stable offsets: {e}"]
        finally:
            self._roles.set_stable_offsets(offsets)
        return []

    def _report_logs(self, view: ClusterView) -> list[str]:
        """Report the logs of the watched topics; return the failure, if any."""
        if self._polled_logs is None:
            return []
        errors = self._polled_logs.report(led_by_brokers(self._watched, view))
        text = f"{len(errors)} failures while reporting brokers' logs; the first: "
        return [f"{text}{e}" for e in errors[:1]]

    def _update_watched(self, view: ClusterView | None, local: Collection[TopicName]) -> None:
        missing = set() if view is None else self._recalled.missing(view) - self._watched.keys()
        self._known_by_rlmm |= missing
        watched = {**self._watched, **dict.fromkeys(missing)}
        registered = self._cluster.registered_id
        self._watched = watched_after(watched, local, view, registered, self._clock())
        self._known_by_rlmm &= self._watched.keys()

    def _existing(self, view: ClusterView) -> set[TopicName]:
        """List the topics to watch that the cluster has by this view."""
        watched = {topic for topic in self._watched if view.topic(topic.topic_id, topic.name)}
        return watched | self._recalled.existing(view)

    def _recall(self) -> list[str]:
        """Read topics for the next poll, after this one's roles: RLMM may be slow to fail."""
        try:
            self._recalled.read()
        except RemoteStorageError as e:
            return [f"cannot list this cluster's topics in RLMM: {e}"]
        return []

    def _apply(self, local: Iterable[TopicIdPartition], view: ClusterView) -> _Refusals:
        found = role_changes(self._applied.changes, local, view, self._directories.broker_id)
        refused = self._applied.apply(found.changes)
        return refused + self._applied.stop(found.reassigned, StopReason.REASSIGNED)

    def _stop_deleted(self) -> _Refusals:
        refused: _Refusals = []
        for topic in confirmed(self._watched, self._cluster.confirm_s, self._clock()):
            errors = self._stop_topic(topic)
            refused += errors
            if not errors:
                del self._watched[topic]
        return refused

    def _stop_topic(self, topic: TopicName) -> _Refusals:
        """Mark the topic's partitions in RLMM for deletion, and end the roles of the others."""
        try:
            found = [
                summary
                for summary in all_partitions(self._rlmm, topic=topic.name)
                if summary.topic_id_partition.topic_id == topic.topic_id
            ]
        except RemoteStorageError as e:
            return [e]
        known: list[TopicIdPartition] = []
        if self._is_ours(topic, {summary.cluster_id for summary in found}):
            known = [summary.topic_id_partition for summary in found]
            _log.warning(
                "topic %s:%s was deleted: the cluster has answered so for %d s; marking %d "
                "partitions for deletion",
                uuid_to_text(topic.topic_id),
                topic.name,
                self._cluster.confirm_s,
                len(known),
            )
        applied = self._applied.changes
        others = [name for name in applied if _topic_of(name) == topic and name not in known]
        refused = self._applied.stop(known, StopReason.TOPIC_DELETED)
        return refused + self._applied.stop(others, StopReason.REASSIGNED)

    def _is_ours(self, topic: TopicName, clusters: Collection[str | None]) -> bool:
        """Return whether RLMM has the topic as this cluster's.

        If RLMM has no cluster for the topic, it is ours if it was polled here; otherwise an
        operator has undeleted it meanwhile.
        """
        registered = self._cluster.registered_id
        ours = {registered} if topic in self._known_by_rlmm else {registered, None}
        others = sorted(cluster or "none" for cluster in clusters if cluster not in ours)
        if others:
            _log.warning(
                "topic %s:%s is no longer in cluster %s, but its cluster in RLMM is %s: it is not "
                "marked for deletion; run `sediment topics delete` if it was deleted",
                uuid_to_text(topic.topic_id),
                topic.name,
                registered,
                ", ".join(others),
            )
        return not others


def _topic_of(name: TopicIdPartition) -> TopicName:
    return TopicName(name.topic_id, name.topic)
