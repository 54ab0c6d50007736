"""What administrators take back: a mark for deletion, a wrong leader epoch."""

from dataclasses import dataclass

from sqlalchemy.orm import Session

from services.api.calls import MutationContext, MutationOutcome
from services.api.errors import InvalidStateTransitionError
from services.api.ids import TopicIdPartition
from services.rlmm import partition_states, partitions
from services.rlmm.audit import NO_BROKER, record
from services.rlmm.guards import FINISHED, MARKED, require_expected, unknown_partition
from services.rlmm.tables import EventRow, PartitionRow


@dataclass(frozen=True, slots=True)
class Undeletion:
    """The arguments of undelete_partition, but for the context."""

    topic_id_partition: TopicIdPartition


@dataclass(frozen=True, slots=True)
class LeaderEpochReset:
    """The arguments of reset_leader_epoch, but for the context."""

    topic_id_partition: TopicIdPartition
    leader_epoch: int | None


def undelete(
    session: Session, partition: PartitionRow, change: Undeletion, context: MutationContext
) -> MutationOutcome:
    """Take the mark back; see RemoteLogMetadataManager.undelete_partition.

    A mark changes nothing else of a partition, so that there is nothing else to take back. RLMs
    that watch the topic are to leave it alone from now on, so that its cluster is forgotten.
    """
    tp, present = change.topic_id_partition, partition.delete_state
    if present == FINISHED.value:
        raise unknown_partition(tp)
    if present is None:
        return MutationOutcome(applied=False, revision=partition.revision)
    if present != MARKED.value:
        raise InvalidStateTransitionError(
            f"partition {tp} is in {present}: its segments are going already"
        )
    require_expected(session, partition, context)
    partition.delete_state = None
    partition.marked_at = None
    partitions.forget_cluster(session, partition.topic_id)
    event = EventRow(
        kind="PARTITION_DELETE",
        from_state=present,
        broker_id=NO_BROKER,
        broker_leader_epoch=context.broker_leader_epoch,
    )
    return MutationOutcome(applied=True, revision=record(session, partition, event, context))


def reset_leader_epoch(
    session: Session, partition: PartitionRow, change: LeaderEpochReset, context: MutationContext
) -> MutationOutcome:
    """Set the highest broker leader epoch; see RemoteLogMetadataManager.reset_leader_epoch."""
    old, new = partition.highest_broker_leader_epoch, change.leader_epoch
    if partition.delete_state == FINISHED.value:
        raise unknown_partition(change.topic_id_partition)
    if new == old:
        return MutationOutcome(applied=False, revision=partition.revision)
    require_expected(session, partition, context)
    partition.highest_broker_leader_epoch = new
    partition_states.overrule_report(session, partition, new)
    event = EventRow(
        kind="LEADER_EPOCH_RESET",
        from_state=_text(old),
        to_state=_text(new),
        broker_id=NO_BROKER,
        broker_leader_epoch=new,
    )
    return MutationOutcome(applied=True, revision=record(session, partition, event, context))


def _text(leader_epoch: int | None) -> str | None:
    return None if leader_epoch is None else str(leader_epoch)
