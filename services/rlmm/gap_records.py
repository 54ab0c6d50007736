"""Recording offsets that the tier will never have; see RemoteLogMetadataManager.record_gap."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from services.api.calls import MutationContext, MutationOutcome
from services.api.errors import InvalidStateTransitionError
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.offset_gaps import MAX_GAPS, OffsetGap
from services.rlmm import gaps
from services.rlmm.events import count_repeat, record
from services.rlmm.guards import require_expected
from services.rlmm.partitions import FINISHED, fence, unknown_partition
from services.rlmm.reaches import REACH_CLASSES, REACH_DIGITS
from services.rlmm.rows import AnyRow
from services.rlmm.tables import EventRow, GapRow, PartitionRow

_FINISHED_SEGMENT = """
        SELECT segment_id, start_offset, end_offset FROM segments
        WHERE topic_id = %(topic_id)s AND partition = %(partition)s
            AND state = 'COPY_SEGMENT_FINISHED' AND state <> 'DELETE_SEGMENT_FINISHED'"""

# One that begins within the range, or one that holds its first offset.
# (state <> ... is implied, and tells the planner of the index on live segments.)
HOLDER = f"""
    (SELECT within.* FROM ({_FINISHED_SEGMENT}
            AND start_offset BETWEEN %(start)s AND %(end)s
        ORDER BY start_offset LIMIT 1
    ) AS within)
    UNION ALL
    (SELECT holds.*
    FROM {REACH_CLASSES} AS reach (digits, longest)
    CROSS JOIN LATERAL ({_FINISHED_SEGMENT}
            AND {REACH_DIGITS} = reach.digits
            AND start_offset BETWEEN %(start)s - reach.longest AND %(start)s
            AND end_offset >= %(start)s
        LIMIT 1
    ) AS holds)
    LIMIT 1"""


@dataclass(frozen=True, slots=True)
class GapRecord:
    """The arguments of record_gap, but for the context."""

    topic_id_partition: TopicIdPartition
    gap: OffsetGap
    broker_id: int


def record_gap(
    session: Session, partition: PartitionRow, change: GapRecord, context: MutationContext
) -> MutationOutcome:
    """Record the range, joined to those that it overlaps or touches, or find that it is there."""
    tp, gap = change.topic_id_partition, change.gap
    if partition.delete_state == FINISHED.value:
        raise unknown_partition(tp)
    first, last = max(gap.start_offset, partition.log_start_offset), gap.end_offset
    rows = gaps.rows_of(session, partition)
    if _is_not_kept(rows, first, last):
        return MutationOutcome(applied=False, revision=partition.revision)
    for row in rows:
        if row.start_offset <= first and last <= row.end_offset:
            count_repeat(session, partition, row.revision)
            return MutationOutcome(applied=False, revision=row.revision)
    fence(partition, tp, context.broker_leader_epoch)
    _require_lost(session, partition, tp, first, last)
    require_expected(session, partition, context)
    event = EventRow(
        kind="GAP",
        to_state=f"{gap.kind} {gap.start_offset}-{gap.end_offset}",
        broker_id=change.broker_id,
        broker_leader_epoch=context.broker_leader_epoch,
    )
    revision = record(session, partition, event, context)
    joined = [row for row in rows if row.start_offset <= last + 1 and first <= row.end_offset + 1]
    union = GapRow(
        topic_id=partition.topic_id,
        partition=partition.partition,
        start_offset=min([first, *(row.start_offset for row in joined)]),
        end_offset=max([last, *(row.end_offset for row in joined)]),
        kind=gap.kind,
        leader_epoch=_leader_epoch(partition, context, joined),
        revision=revision,
    )
    gaps.put_instead(session, partition, [row.start_offset for row in joined], union)
    return MutationOutcome(applied=True, revision=revision)


def _leader_epoch(
    partition: PartitionRow, context: MutationContext, joined: Sequence[AnyRow]
) -> int | None:
    """Under which the range was found lost: the earliest that any part of it was, for a loss that
    is told of twice does less harm than one that nobody is told of."""
    epoch = context.broker_leader_epoch
    own = partition.highest_broker_leader_epoch if epoch is None else epoch
    epochs = [own, *(row.leader_epoch for row in joined)]
    return min((epoch for epoch in epochs if epoch is not None), default=None)


def _is_not_kept(rows: Sequence[AnyRow], first: int, last: int) -> bool:
    """It lies below the log start, or below as many as are kept."""
    return last < first or (len(rows) >= MAX_GAPS and last + 1 < rows[0].start_offset)


def _require_lost(
    session: Session, partition: PartitionRow, tp: TopicIdPartition, first: int, last: int
) -> None:
    values = {
        "topic_id": partition.topic_id,
        "partition": partition.partition,
        "start": first,
        "end": last,
    }
    holder = session.connection().exec_driver_sql(HOLDER, values).first()
    if holder is not None:
        raise InvalidStateTransitionError(
            f"gap: offsets {first} to {last} of partition {tp}: segment "
            f"{uuid_to_text(holder.segment_id)} has {holder.start_offset} to {holder.end_offset}"
        )
