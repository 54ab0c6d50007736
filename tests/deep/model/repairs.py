"""What the model does of gaps, marks that are taken back, and leader epochs that are reset."""

from services.api.calls import NO_CONTEXT, MutationContext, MutationOutcome
from services.api.errors import InvalidStateTransitionError, RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition
from services.api.partitions import GAP_KINDS, OffsetGap, RemotePartitionDeleteState
from services.api.validation import require, require_int32
from tests.deep.model.changes import ReferenceChanges
from tests.deep.model.partition import Event, Partition

MARKED = RemotePartitionDeleteState.DELETE_PARTITION_MARKED


class ReferenceRepairs(ReferenceChanges):
    """Lost offsets are a set, and a gap is a run of it."""

    def record_gap(
        self,
        topic_id_partition: TopicIdPartition,
        gap: OffsetGap,
        broker_id: int,
        context: MutationContext = NO_CONTEXT,
    ) -> MutationOutcome:
        require(gap.kind in GAP_KINDS, "gap.kind", "is not known")
        require_int32(broker_id, "broker_id", at_least=-1)
        partition = self.partition_there(topic_id_partition)
        return self.once(
            partition,
            (topic_id_partition, gap, broker_id),
            context,
            lambda: self._record_gap(topic_id_partition, partition, gap, context),
        )

    def _record_gap(
        self,
        tp: TopicIdPartition,
        partition: Partition,
        gap: OffsetGap,
        context: MutationContext,
    ) -> MutationOutcome:
        self._require_known(partition)
        offsets = range(max(gap.start_offset, partition.log_start_offset), gap.end_offset + 1)
        if not offsets:
            return MutationOutcome(False, partition.revision)
        if all(offset in partition.lost for offset in offsets):
            return MutationOutcome(False, partition.lost[offsets[0]])
        partition.fence(context.broker_leader_epoch)
        if partition.has_finished(offsets):
            raise InvalidStateTransitionError("a finished segment holds one of the offsets")
        partition.require_expected(context, partition.revision)
        told = f"{gap.kind} {gap.start_offset}-{gap.end_offset}"
        revision = self.record(tp, partition, Event("GAP", None, told))
        partition.lose(offsets, revision)
        return MutationOutcome(True, revision)

    def undelete_partition(
        self, topic_id_partition: TopicIdPartition, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        partition = self.partition_there(topic_id_partition)
        body = ("undelete", topic_id_partition)
        return self.once(
            partition, body, context, lambda: self._undelete(topic_id_partition, partition, context)
        )

    def _undelete(
        self, tp: TopicIdPartition, partition: Partition, context: MutationContext
    ) -> MutationOutcome:
        self._require_known(partition)
        present = partition.delete_state
        if present is None:
            return MutationOutcome(False, partition.revision)
        if not self.may_come_back(present):
            raise InvalidStateTransitionError("its segments are going already")
        partition.require_expected(context, partition.revision)
        partition.delete_state = None
        event = Event("PARTITION_DELETE", present.value)
        return MutationOutcome(True, self.record(tp, partition, event))

    def may_come_back(self, present: RemotePartitionDeleteState) -> bool:
        return present is MARKED

    def reset_leader_epoch(
        self,
        topic_id_partition: TopicIdPartition,
        leader_epoch: int | None,
        context: MutationContext = NO_CONTEXT,
    ) -> MutationOutcome:
        require_int32(leader_epoch or 0, "leader_epoch")
        partition = self.partition_there(topic_id_partition)
        return self.once(
            partition,
            ("reset", topic_id_partition, leader_epoch),
            context,
            lambda: self._reset(topic_id_partition, partition, leader_epoch, context),
        )

    def _reset(
        self,
        tp: TopicIdPartition,
        partition: Partition,
        leader_epoch: int | None,
        context: MutationContext,
    ) -> MutationOutcome:
        self._require_known(partition)
        before = partition.highest_broker_leader_epoch
        if before == leader_epoch:
            return MutationOutcome(False, partition.revision)
        partition.require_expected(context, partition.revision)
        partition.reset_leader_epoch(leader_epoch)
        old, new = (None if epoch is None else str(epoch) for epoch in (before, leader_epoch))
        event = Event("LEADER_EPOCH_RESET", old, new)
        return MutationOutcome(True, self.record(tp, partition, event))

    def _require_known(self, partition: Partition) -> None:
        if partition.is_deleted:
            raise RemoteResourceNotFoundError("the partition was deleted")
