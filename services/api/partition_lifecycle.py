"""RLM: which partitions a broker leads, which it follows, and which it gives up.

Source: RemoteLogManager.onLeadershipChange, RemoteLogManager.stopPartitions.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from services.api.errors import RemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.validation import require, require_count, require_int32

MAX_LEADERSHIP_CHANGES = 10_000
MAX_STOPS = 1_000


class PartitionRole(Enum):
    """What a broker is to a partition.

    LEADER: it copies, and keeps retention. FOLLOWER: it knows what is in the tier, and changes
    nothing there.
    """

    LEADER = "LEADER"
    FOLLOWER = "FOLLOWER"


class StopReason(Enum):
    """Why a broker gives a partition up.

    REASSIGNED: the replica goes elsewhere; the tier stays as it is. TIERING_DISABLED: the topic is
    to be tiered no more; the leader deletes what is in the tier. TOPIC_DELETED: the partition is
    marked for deletion, and removed later.
    """

    REASSIGNED = "REASSIGNED"
    TIERING_DISABLED = "TIERING_DISABLED"
    TOPIC_DELETED = "TOPIC_DELETED"


@dataclass(frozen=True, slots=True)
class LeadershipChange:
    """A broker's role in a partition, from this leader epoch on.

    Attributes:
        leader_epoch: of the partition's present leader; None: the latest of the log's own leader
            epochs, each time it is asked for.
    """

    topic_id_partition: TopicIdPartition
    leader_epoch: int | None
    role: PartitionRole

    def __post_init__(self) -> None:
        if self.leader_epoch is not None:
            require_int32(self.leader_epoch, "leader_epoch")


@dataclass(frozen=True, slots=True)
class LeadershipDelta:
    """What changed: each partition once."""

    changes: tuple[LeadershipChange, ...]

    def __post_init__(self) -> None:
        require_count(self.changes, "changes", MAX_LEADERSHIP_CHANGES)
        _require_distinct((c.topic_id_partition for c in self.changes), "changes")


@dataclass(frozen=True, slots=True)
class StopPartition:
    """A partition to give up (Kafka: StopPartition).

    Attributes:
        leader_epoch: of the partition when this was decided; None: not known, then nothing is
            stale.
    """

    topic_id_partition: TopicIdPartition
    leader_epoch: int | None
    reason: StopReason

    def __post_init__(self) -> None:
        if self.leader_epoch is not None:
            require_int32(self.leader_epoch, "leader_epoch")


@dataclass(frozen=True, slots=True)
class PartitionStops:
    """What to give up: each partition once."""

    partitions: tuple[StopPartition, ...]

    def __post_init__(self) -> None:
        require_count(self.partitions, "partitions", MAX_STOPS)
        _require_distinct((p.topic_id_partition for p in self.partitions), "partitions")


LifecycleOutcome = RemoteStorageError | None
"""Of one partition. None: it is so now."""


class PartitionLifecycle(Protocol):
    """What a source of partitions tells; a part of RemoteLogManager, which says what holds."""

    def on_leadership_change(self, delta: LeadershipDelta) -> list[LifecycleOutcome]:
        """Take on roles; an outcome for each change, in order. Idempotent: the role that a
        partition has already keeps its tasks, under the newer epoch.

        A leader has copy and expiration passes, a follower a pass that keeps what is known of the
        tier fresh. Of the tasks of another role a copy under way is finished (KIP-405), and begins
        no other segment; an expiration begins nothing more. RLMM need not be reached for it: the
        passes tell it.

        Raises:
            InvalidRequestError: a topic id under two names, or known here under another; nothing
                changed.
            NotServedError: the partitions come from another source.

        Outcomes:
            FencedLeaderEpochError: a later leader epoch is known; nothing of the partition changed.
            ConcurrentUpdateError: its tiering is being disabled; try again. Nothing of it changed.
        """
        ...

    def stop_partitions(self, stops: PartitionStops) -> list[LifecycleOutcome]:
        """Give partitions up; an outcome for each, in order, and none stops another. Idempotent;
        after an error the same call goes on from where it came to.

        REASSIGNED: the tasks end as for another role; nothing else.

        TIERING_DISABLED: where this broker leads, the tier's log start is raised to the local one
        and every segment is marked, DELETE_SEGMENT_STARTED: that is committed when this returns.
        Their objects go after it, in the background; what is left of that when the process dies,
        whoever finishes deletions finishes; this call again does, too, and no other call ends it.
        Whose retention it is (sediment.retention.owner) does not matter. A follower only ends its
        tasks.

        TOPIC_DELETED: the partition is DELETE_PARTITION_MARKED, whatever the role here. Whoever
        removes partitions does the rest.

        Raises:
            InvalidRequestError: a topic id under two names, or known here under another; nothing
                changed.
            NotServedError: the partitions come from another source.

        Outcomes:
            FencedLeaderEpochError: a later leader epoch is known, here or to RLMM.
            DeletionRefusedError: TIERING_DISABLED of a topic whose settings do not allow it:
                remote.log.delete.on.disable, sediment.hold, or sediment.sweep.paused where
                sediment.retention.owner is sweep; or while another broker copies a segment under a
                lease.
            InvalidStateTransitionError: TIERING_DISABLED of a partition that is not known here and
                has something in the tier, or whose log is not here.
            ConcurrentUpdateError: a copy has not ended yet, the log cannot be read now, the
                settings changed meanwhile (the tasks have ended), or another call disables the
                partition; try again.
            RetriableRemoteStorageError: RLMM cannot be reached; after three in a row it is not
                asked for the partitions that follow.
        """
        ...


def _require_distinct(partitions: Iterable[TopicIdPartition], field: str) -> None:
    seen: set[TopicIdPartition] = set()
    for tp in partitions:
        require(tp not in seen, field, f"names partition {tp} twice")
        seen.add(tp)
