"""What a broker's roles are, by what its cluster answers. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.api.ids import TopicIdPartition
from services.api.partition_lifecycle import LeadershipChange, PartitionRole
from services.rlm.kafka_admin.cluster_view import ClusterView, PartitionView, TopicView

Roles = Mapping[TopicIdPartition, LeadershipChange]
"""What was told last of each partition."""


@dataclass(frozen=True, slots=True)
class RoleChanges:
    """
    Attributes:
        changes: roles to take on, or to keep under a later leader epoch.
        reassigned: partitions that are no longer this broker's.
    """

    changes: tuple[LeadershipChange, ...] = ()
    reassigned: tuple[TopicIdPartition, ...] = ()


def role_changes(
    told: Roles, here: Iterable[TopicIdPartition], view: ClusterView, broker_id: int
) -> RoleChanges:
    """What is other in `view` than what was told.

    A partition of which the view tells nothing, or not enough, keeps the role that was told last:
    its topic cannot be seen, has no leader now, or is there under another id. Whether a topic was
    deleted is not decided here (confirmed_deletions.py).

    Args:
        here: the partitions whose logs lie in the log directories.
    """
    changes, reassigned = [], []
    for name in sorted({*told, *here}):
        found = _partition_of(view, name)
        before = told.get(name)
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


def led_epochs(told: Roles, view: ClusterView, broker_id: int) -> dict[TopicIdPartition, int]:
    """The leader epochs of the partitions that this broker leads, by what was told and by `view`;
    of each topic's name one id."""
    led = {}
    for name, change in told.items():
        found = _partition_of(view, name)
        if found is not None and found.leader == broker_id and change.leader_epoch is not None:
            led[name] = change.leader_epoch
    return led


def _partition_of(view: ClusterView, name: TopicIdPartition) -> PartitionView | None:
    topic = view.topics.get(name.topic)
    if not isinstance(topic, TopicView) or topic.topic_id != name.topic_id:
        return None
    return topic.partitions.get(name.partition)


def _change(
    name: TopicIdPartition, before: LeadershipChange | None, found: PartitionView, broker_id: int
) -> LeadershipChange | None:
    if found.leader is None:
        return None
    if found.leader != broker_id:
        # A follower acts under no leader epoch; the log tells it when one is needed.
        follower = LeadershipChange(name, None, PartitionRole.FOLLOWER)
        return None if before == follower else follower
    epoch = found.leader_epoch
    # Without the epoch that it is led under, one that was deposed would go on under the epoch of
    # the next leader, which its log learns from that one.
    if epoch is None:
        return None
    if before is not None and before.leader_epoch is not None and epoch < before.leader_epoch:
        return None  # an old answer
    leader = LeadershipChange(name, epoch, PartitionRole.LEADER)
    return None if before == leader else leader
