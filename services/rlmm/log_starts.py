"""Where the tier's log begins: raised before what lies below is deleted."""

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from services.api.calls import MutationContext, MutationOutcome
from services.api.errors import InvalidRangeError
from services.api.ids import TopicIdPartition
from services.rlmm import gaps
from services.rlmm.events import NO_BROKER, record
from services.rlmm.guards import require_expected, require_may_delete
from services.rlmm.partition_states import bounds_of, cut_lineage
from services.rlmm.partitions import FINISHED, fence, unknown_partition
from services.rlmm.tables import EventRow, HighestOffsetRow, PartitionRow


@dataclass(frozen=True, slots=True)
class LogStartRaise:
    """The arguments of raise_log_start_offset, but for the context."""

    topic_id_partition: TopicIdPartition
    log_start_offset: int


def raise_log_start(
    session: Session, partition: PartitionRow, change: LogStartRaise, context: MutationContext
) -> MutationOutcome:
    """Raise the log start, or find that it is there; see
    RemoteLogMetadataManager.raise_log_start_offset."""
    tp, old, new = change.topic_id_partition, partition.log_start_offset, change.log_start_offset
    if partition.delete_state == FINISHED.value:
        raise unknown_partition(tp)
    if new <= old:
        return MutationOutcome(applied=False, revision=partition.revision)
    fence(partition, tp, context.broker_leader_epoch)
    require_expected(session, partition, context)
    require_may_delete(session, partition, context)
    end = _end_offset(session, partition)
    if new > end:
        raise InvalidRangeError(
            f"log_start_offset: {new} is above {end}, the end of partition {tp}: the reported high "
            "watermark, or what was copied"
        )
    partition.log_start_offset = new
    cut_lineage(session, partition)
    gaps.forget_below(session, partition, new)
    event = EventRow(
        kind="LOG_START",
        from_state=str(old),
        to_state=str(new),
        broker_id=NO_BROKER,
        broker_leader_epoch=context.broker_leader_epoch,
    )
    return MutationOutcome(applied=True, revision=record(session, partition, event, context))


def _end_offset(session: Session, partition: PartitionRow) -> int:
    """Exclusive; 0 where nothing was reported nor finished.

    What an overruled leader copied beyond the point where it was overruled does not count: the
    log never had it.
    """
    rows = session.execute(
        select(HighestOffsetRow.leader_epoch, HighestOffsetRow.highest_offset).where(
            HighestOffsetRow.topic_id == partition.topic_id,
            HighestOffsetRow.partition == partition.partition,
        )
    )
    ends: dict[int, int] = {row.leader_epoch: row.highest_offset + 1 for row in rows}
    high_watermark, lineage = bounds_of(session, partition)
    if lineage.entries:
        ends = {
            entry.leader_epoch: min(end, lineage.end_offset_for(entry.leader_epoch, end))
            for entry in lineage.entries
            if (end := ends.get(entry.leader_epoch)) is not None
        }
    return max([high_watermark, *ends.values()])
