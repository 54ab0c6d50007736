"""The recorded gaps of a partition, as rows: ranges that neither overlap nor touch."""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, delete, func, select, update
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.orm import Session

from services.api.lineage import Lineage
from services.api.offset_gaps import MAX_GAPS, OffsetGap
from services.rlmm.rows import AnyRow
from services.rlmm.tables import GapRow, PartitionRow

Gaps = Iterable[tuple[int, int, str]] | None
"""What `column` answers: start, end and kind of each; None for none."""


def column(topic_id: Any, partition: Any, log_start_offset: Any) -> ColumnElement[Any]:
    """An expression for a partition's gaps at or above its log start, ascending; what it is of is
    given as values or as columns of the statement around it."""
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


def rows_of(session: Session, partition: PartitionRow) -> Sequence[AnyRow]:
    """All rows, ascending; at most MAX_GAPS."""
    columns = GapRow.__table__.columns
    return session.execute(
        select(*columns).where(*_is_of(partition)).order_by(GapRow.start_offset)
    ).all()


def put_instead(
    session: Session, partition: PartitionRow, gone: Iterable[int], new: GapRow
) -> None:
    """Put `new` in the place of the rows that start at `gone`; of more than MAX_GAPS rows the
    lowest go."""
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


def forget_below(session: Session, partition: PartitionRow, offset: int) -> None:
    """What ends below `offset` goes."""
    _delete(session, *_is_of(partition), GapRow.end_offset < offset)


def forget_overwritten(session: Session, partition: PartitionRow, lineage: Lineage) -> None:
    """What was found lost under a leader epoch says nothing of the records of later ones: of each
    gap the offsets go that `lineage` has in an epoch after the gap's own."""
    for row in rows_of(session, partition):
        later = (e.start_offset for e in lineage.entries if e.leader_epoch > row.leader_epoch)
        # Nothing is known of epochs where a gap has none.
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


def forget_all(session: Session, partition: PartitionRow) -> None:
    _delete(session, *_is_of(partition))


def _delete(session: Session, *where: ColumnElement[bool]) -> None:
    session.execute(delete(GapRow).where(*where).execution_options(synchronize_session=False))


def _is_of(partition: PartitionRow) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return GapRow.topic_id == partition.topic_id, GapRow.partition == partition.partition
