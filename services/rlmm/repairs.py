"""What administrators take back: a mark for deletion, a wrong leader epoch."""

from dataclasses import dataclass

from services.api.calls import MutationOutcome
from services.api.errors import InvalidStateTransitionError
from services.api.ids import TopicIdPartition
from services.rlmm import partition_states, partitions
from services.rlmm.audit import Event
from services.rlmm.guards import FINISHED, MARKED, unknown_partition
from services.rlmm.idempotency import PartitionChange


@dataclass(frozen=True, slots=True)
class Undeletion:
    """The arguments of undelete_partition, but for the context."""

    topic_id_partition: TopicIdPartition


@dataclass(frozen=True, slots=True)
class LeaderEpochReset:
    """The arguments of reset_leader_epoch, but for the context."""

    topic_id_partition: TopicIdPartition
    leader_epoch: int | None


def undelete(change: PartitionChange, undeletion: Undeletion) -> MutationOutcome:
    """Take the mark back; see RemoteLogMetadataManager.undelete_partition.

    A mark changes nothing else of a partition, so that there is nothing else to take back. RLMs
    that watch the topic are to leave it alone from now on, so that its cluster is forgotten.
    """
    tp, partition = undeletion.topic_id_partition, change.partition
    present = partition.delete_state
    if present == FINISHED.value:
        raise unknown_partition(tp)
    if present is None:
        return change.unchanged()
    if present != MARKED.value:
        raise InvalidStateTransitionError(
            f"partition {tp} is in {present}: its segments are going already"
        )
    change.guards.require_expected(change.context)
    partition.delete_state = None
    partition.marked_at = None
    partitions.forget_cluster(change.session, partition.topic_id)
    epoch = change.context.broker_leader_epoch
    return change.record(Event("PARTITION_DELETE", present, broker_leader_epoch=epoch))


def reset_leader_epoch(change: PartitionChange, reset: LeaderEpochReset) -> MutationOutcome:
    """Set the highest broker leader epoch; see RemoteLogMetadataManager.reset_leader_epoch."""
    partition, new = change.partition, reset.leader_epoch
    old = partition.highest_broker_leader_epoch
    if partition.delete_state == FINISHED.value:
        raise unknown_partition(reset.topic_id_partition)
    if new == old:
        return change.unchanged()
    change.guards.require_expected(change.context)
    partition.highest_broker_leader_epoch = new
    partition_states.overrule_report(change.session, partition, new)
    event = Event("LEADER_EPOCH_RESET", _text(old), _text(new), broker_leader_epoch=new)
    return change.record(event)


def _text(leader_epoch: int | None) -> str | None:
    return None if leader_epoch is None else str(leader_epoch)
