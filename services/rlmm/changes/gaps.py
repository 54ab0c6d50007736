"""Record offsets that the tier will never have, and read them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from sqlalchemy import Connection

from services.api.calls import MutationContext, MutationOutcome
from services.api.errors import InvalidStateTransitionError
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.lineage import Lineage
from services.api.partitions import LOST_BEFORE_COPY, MAX_GAPS, OffsetGap
from services.rlmm.changes.audit import Event
from services.rlmm.changes.batch import Change
from services.rlmm.database.db import execute, key_values
from services.rlmm.database.epoch_index import RANGE_CLASS, RANGE_CLASSES
from services.rlmm.database.rows import AnyRow
from services.rlmm.guards import FINISHED, Partition, fence, unknown_partition

Gaps: TypeAlias = Iterable[tuple[int, int, str]] | None
"""The result of OF_PARTITION: start, end and kind of each gap; None if there are none."""

OF_PARTITION = """
        SELECT json_agg(json_build_array(
            greatest(g.start_offset, p.log_start_offset), g.end_offset, g.kind)
            ORDER BY g.start_offset)
        FROM gaps AS g WHERE g.topic_id = p.topic_id AND g.partition = p.partition
            AND g.end_offset >= p.log_start_offset"""
"""SQL for the gaps of `partitions AS p` at or above its log start, ascending."""

_THIS = "topic_id = %(topic_id)s AND partition = %(partition)s"
_READ = f"SELECT * FROM gaps WHERE {_THIS} ORDER BY start_offset"
_DELETE = f"DELETE FROM gaps WHERE {_THIS}"
_INSERT = """
    INSERT INTO gaps (topic_id, partition, start_offset, end_offset, kind, leader_epoch, revision)
    VALUES (%(topic_id)s, %(partition)s, %(start_offset)s, %(end_offset)s, %(kind)s,
        %(leader_epoch)s, %(revision)s)"""
_DELETE_EXCESS = f"""
    {_DELETE} AND start_offset < (
        SELECT start_offset FROM gaps WHERE {_THIS}
        ORDER BY start_offset DESC OFFSET {MAX_GAPS - 1} LIMIT 1)"""
_CUT = f"UPDATE gaps SET end_offset = %(end_offset)s WHERE {_THIS} AND start_offset = %(start)s"


def from_column(gaps: Gaps) -> tuple[OffsetGap, ...]:
    return tuple(OffsetGap(*gap) for gap in gaps or ())


def _rows_of(connection: Connection, partition: Partition) -> Sequence[AnyRow]:
    """Read all gaps of the partition, ascending; at most MAX_GAPS."""
    return execute(connection, _READ, key_values(partition.key)).fetchall()


def delete_below(connection: Connection, partition: Partition, offset: int) -> None:
    """Delete the gaps that end below `offset`."""
    values = {**key_values(partition.key), "offset": offset}
    execute(connection, f"{_DELETE} AND end_offset < %(offset)s", values)


def cut_overwritten(connection: Connection, partition: Partition, lineage: Lineage) -> None:
    """Cut from each gap the offsets that `lineage` has in an epoch after the gap's own.

    A loss under one leader epoch does not concern the records of later epochs.
    """
    for row in _rows_of(connection, partition):
        later = (e.start_offset for e in lineage.entries if e.leader_epoch > row.leader_epoch)
        # A gap without an epoch is never cut.
        end = None if row.leader_epoch is None else next(later, None)
        if end is None or end > row.end_offset:
            continue
        values = {**key_values(partition.key), "start": row.start_offset, "end_offset": end - 1}
        statement = _CUT if end > row.start_offset else f"{_DELETE} AND start_offset = %(start)s"
        execute(connection, statement, values)


def delete_all(connection: Connection, partition: Partition) -> None:
    execute(connection, _DELETE, key_values(partition.key))


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
    connection, partition, context = change.connection, change.partition, change.context
    tp, gap = loss.topic_id_partition, loss.gap
    if partition.delete_state == FINISHED.value:
        raise unknown_partition(tp)
    first, last = max(gap.start_offset, partition.log_start_offset), gap.end_offset
    rows = _rows_of(connection, partition)
    if _is_not_kept(rows, first, last):
        return change.unchanged()
    for row in rows:
        if row.start_offset <= first and last <= row.end_offset:
            return change.repeat(row.revision)
    fence(partition, tp, context.broker_leader_epoch)
    _require_lost(connection, partition, tp, first, last)
    change.locked.require_expected(context)
    range_text = f"{gap.kind} {gap.start_offset}-{gap.end_offset}"
    epoch = context.broker_leader_epoch
    outcome = change.record(Event("GAP", None, range_text, loss.broker_id, epoch))
    joined = [row for row in rows if row.start_offset <= last + 1 and first <= row.end_offset + 1]
    kinds = [gap.kind, *(row.kind for row in joined)]
    union = {
        **key_values(partition.key),
        "start_offset": min([first, *(row.start_offset for row in joined)]),
        "end_offset": max([last, *(row.end_offset for row in joined)]),
        # A range that is lost in part counts as lost.
        "kind": LOST_BEFORE_COPY if LOST_BEFORE_COPY in kinds else gap.kind,
        "leader_epoch": _leader_epoch(partition, context, joined),
        "revision": outcome.revision,
        "joined": [row.start_offset for row in joined],
    }
    execute(connection, f"{_DELETE} AND start_offset = ANY(%(joined)s::bigint[])", union)
    execute(connection, _INSERT, union)
    execute(connection, _DELETE_EXCESS, union)
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
    connection: Connection, partition: Partition, tp: TopicIdPartition, first: int, last: int
) -> None:
    values = {**key_values(partition.key), "start": first, "end": last}
    holder = execute(connection, HOLDER, values).fetchone()
    if holder is not None:
        raise InvalidStateTransitionError(
            f"gap: offsets {first} to {last} of partition {tp} are not all lost: segment "
            f"{uuid_to_text(holder.segment_id)} holds {holder.start_offset} to {holder.end_offset}"
        )
