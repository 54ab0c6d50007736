"""Record offsets that the tier will never have, and read them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, delete, func, select, update
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.orm import Session

from services.api.calls import MutationContext, MutationOutcome
from services.api.errors import InvalidStateTransitionError
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.lineage import Lineage
from services.api.partitions import LOST_BEFORE_COPY, MAX_GAPS, OffsetGap
from services.rlmm.changes.audit import Event
from services.rlmm.changes.batch import Change
from services.rlmm.database.epoch_index import RANGE_CLASS, RANGE_CLASSES
from services.rlmm.database.rows import AnyRow
from services.rlmm.database.tables import GapRow
from services.rlmm.guards import FINISHED, Partition, fence, unknown_partition

Gaps = Iterable[tuple[int, int, str]] | None
"""The result of `column`: start, end and kind of each gap; None if there are none."""


def column(topic_id: Any, partition: Any, log_start_offset: Any) -> ColumnElement[Any]:
    """Build an SQL expression for a partition's gaps at or above its log start, ascending.

    The arguments are values or columns of the surrounding statement.
    """
    gap = func.json_build_array(
        func.greatest(GapRow.start_offset, log_start_offset), GapRow.end_offset, GapRow.kind
    )
    return (
        select(func.json_agg(aggregate_order_by(gap, GapRow.start_offset)))
        .where(
            GapRow.topic_id == topic_id,
            GapRow.partition == partition,
            GapRow.end_offset >= log_start_offset,
        )
        .scalar_subquery()
        .label("gaps")
    )


def from_column(gaps: Gaps) -> tuple[OffsetGap, ...]:
    return tuple(OffsetGap(*gap) for gap in gaps or ())


def rows_of(session: Session, partition: Partition) -> Sequence[AnyRow]:
    """Read all gaps of the partition, ascending; at most MAX_GAPS."""
    columns = GapRow.__table__.columns
    return session.execute(
        select(*columns).where(*_is_of(partition)).order_by(GapRow.start_offset)
    ).all()


def put_instead(session: Session, partition: Partition, gone: Iterable[int], new: GapRow) -> None:
    """Replace the rows that start at `gone` with `new`; delete the lowest rows beyond MAX_GAPS."""
    _delete(session, *_is_of(partition), GapRow.start_offset.in_(list(gone)))
    session.add(new)
    session.flush()
    lowest_kept = (
        select(GapRow.start_offset)
        .where(*_is_of(partition))
        .order_by(GapRow.start_offset.desc())
        .offset(MAX_GAPS - 1)
        .limit(1)
        .scalar_subquery()
    )
    _delete(session, *_is_of(partition), GapRow.start_offset < lowest_kept)


def forget_below(session: Session, partition: Partition, offset: int) -> None:
    """Delete the gaps that end below `offset`."""
    _delete(session, *_is_of(partition), GapRow.end_offset < offset)


def forget_overwritten(session: Session, partition: Partition, lineage: Lineage) -> None:
    """Cut from each gap the offsets that `lineage` has in an epoch after the gap's own.

    A loss under one leader epoch does not concern the records of later epochs.
    """
    for row in rows_of(session, partition):
        later = (e.start_offset for e in lineage.entries if e.leader_epoch > row.leader_epoch)
        # A gap without an epoch is never cut.
        end = None if row.leader_epoch is None else next(later, None)
        if end is None or end > row.end_offset:
            continue
        this = (*_is_of(partition), GapRow.start_offset == row.start_offset)
        if end <= row.start_offset:
            _delete(session, *this)
            continue
        session.execute(
            update(GapRow)
            .where(*this)
            .values(end_offset=end - 1)
            .execution_options(synchronize_session=False)
        )


def forget_all(session: Session, partition: Partition) -> None:
    _delete(session, *_is_of(partition))


def _delete(session: Session, *where: ColumnElement[bool]) -> None:
    session.execute(delete(GapRow).where(*where).execution_options(synchronize_session=False))


def _is_of(partition: Partition) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return GapRow.topic_id == partition.topic_id, GapRow.partition == partition.partition


_FINISHED_SEGMENT = """
        SELECT segment_id, start_offset, end_offset FROM segments
        WHERE topic_id = %(topic_id)s AND partition = %(partition)s
            AND state = 'COPY_SEGMENT_FINISHED' AND state <> 'DELETE_SEGMENT_FINISHED'"""

# A segment that begins within the range, or one that holds its first offset. (state <> ... is
# implied, and shows the planner that it may use the index on live segments.)
HOLDER = f"""
    (SELECT within.* FROM ({_FINISHED_SEGMENT}
            AND start_offset BETWEEN %(start)s AND %(end)s
        ORDER BY start_offset LIMIT 1
    ) AS within)
    UNION ALL
    (SELECT holds.*
    FROM {RANGE_CLASSES} AS range (digits, longest)
    CROSS JOIN LATERAL ({_FINISHED_SEGMENT}
            AND {RANGE_CLASS} = range.digits
            AND start_offset BETWEEN %(start)s - range.longest AND %(start)s
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


def record_gap(change: Change, loss: GapRecord) -> MutationOutcome:
    """Record the range, merged with gaps that it overlaps or touches, unless it is a repeat."""
    session, partition, context = change.session, change.partition, change.context
    tp, gap = loss.topic_id_partition, loss.gap
    if partition.delete_state == FINISHED.value:
        raise unknown_partition(tp)
    first, last = max(gap.start_offset, partition.log_start_offset), gap.end_offset
    rows = rows_of(session, partition)
    if _is_not_kept(rows, first, last):
        return change.unchanged()
    for row in rows:
        if row.start_offset <= first and last <= row.end_offset:
            return change.repeat(row.revision)
    fence(partition, tp, context.broker_leader_epoch)
    _require_lost(session, partition, tp, first, last)
    change.locked.require_expected(context)
    range_text = f"{gap.kind} {gap.start_offset}-{gap.end_offset}"
    epoch = context.broker_leader_epoch
    outcome = change.record(Event("GAP", None, range_text, loss.broker_id, epoch))
    joined = [row for row in rows if row.start_offset <= last + 1 and first <= row.end_offset + 1]
    kinds = [gap.kind, *(row.kind for row in joined)]
    union = GapRow(
        topic_id=partition.topic_id,
        partition=partition.partition,
        start_offset=min([first, *(row.start_offset for row in joined)]),
        end_offset=max([last, *(row.end_offset for row in joined)]),
        # A range that is lost in part counts as lost.
        kind=LOST_BEFORE_COPY if LOST_BEFORE_COPY in kinds else gap.kind,
        leader_epoch=_leader_epoch(partition, context, joined),
        revision=outcome.revision,
    )
    put_instead(session, partition, [row.start_offset for row in joined], union)
    return outcome


def _leader_epoch(
    partition: Partition, context: MutationContext, joined: Sequence[AnyRow]
) -> int | None:
    """Return the leader epoch of a merged range: the earliest of its parts.

    A loss that is reported twice does less harm than one that is not reported.
    """
    epoch = context.broker_leader_epoch
    own = partition.highest_broker_leader_epoch if epoch is None else epoch
    epochs = [own, *(row.leader_epoch for row in joined)]
    return min((epoch for epoch in epochs if epoch is not None), default=None)


def _is_not_kept(rows: Sequence[AnyRow], first: int, last: int) -> bool:
    """Return whether the range lies below the log start, or below MAX_GAPS other gaps."""
    return last < first or (len(rows) >= MAX_GAPS and last + 1 < rows[0].start_offset)


def _require_lost(
    session: Session, partition: Partition, tp: TopicIdPartition, first: int, last: int
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
            f"gap: offsets {first} to {last} of partition {tp} are not all lost: segment "
            f"{uuid_to_text(holder.segment_id)} holds {holder.start_offset} to {holder.end_offset}"
        )
