"""RLMM on SQL: what puts a partition right by hand, and what was lost for good."""

from sqlalchemy.orm import Session

from services.api.calls import NO_CONTEXT, MutationContext, MutationOutcome
from services.api.ids import TopicIdPartition
from services.api.offset_gaps import GAP_KINDS, OffsetGap
from services.api.validation import require, require_int32
from services.rlmm import gap_records, partitions, repairs
from services.rlmm.managing.database import OnDatabase
from services.rlmm.tables import PartitionRow


class SqlPartitionRepairs(OnDatabase):
    """Satisfies services.api.partition_repairs.PartitionRepairs.

    What repeats no event in particular is not counted as a repeat of one.
    """

    def record_gap(
        self,
        topic_id_partition: TopicIdPartition,
        gap: OffsetGap,
        broker_id: int,
        context: MutationContext = NO_CONTEXT,
    ) -> MutationOutcome:
        known = ", ".join(GAP_KINDS)
        require(gap.kind in GAP_KINDS, "gap.kind", f"must be {known}, is {gap.kind[:64]!r}")
        require_int32(broker_id, "broker_id", at_least=-1)
        change = gap_records.GapRecord(topic_id_partition, gap, broker_id)
        return self._change_once(
            change,
            context,
            lambda session: partitions.lock_known(session, topic_id_partition),
            lambda session, partition: gap_records.record_gap(session, partition, change, context),
            counts_repeats=False,
        )

    def undelete_partition(
        self, topic_id_partition: TopicIdPartition, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        change = repairs.Undeletion(topic_id_partition)

        def lock(session: Session) -> PartitionRow:
            partitions.lock_topics(session, [topic_id_partition])
            return partitions.lock_known(session, topic_id_partition)

        return self._change_once(
            change,
            context,
            lock,
            lambda session, partition: repairs.undelete(session, partition, change, context),
            counts_repeats=False,
        )

    def reset_leader_epoch(
        self,
        topic_id_partition: TopicIdPartition,
        leader_epoch: int | None,
        context: MutationContext = NO_CONTEXT,
    ) -> MutationOutcome:
        if leader_epoch is not None:
            require_int32(leader_epoch, "leader_epoch")
        change = repairs.LeaderEpochReset(topic_id_partition, leader_epoch)
        return self._change_once(
            change,
            context,
            lambda session: partitions.lock_known(session, topic_id_partition),
            lambda session, partition: repairs.reset_leader_epoch(
                session, partition, change, context
            ),
            counts_repeats=False,
        )
