"""The statement of one page of a partition's segments.

Built once for each shape of a question, and given its values when it is run: to build one takes
SQLAlchemy several times as long as PostgreSQL takes to answer it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnElement,
    Integer,
    Select,
    Uuid,
    and_,
    bindparam,
    func,
    literal_column,
    select,
    text,
    true,
    tuple_,
)

from services.api.ids import TopicIdPartition
from services.api.segments import RemoteLogSegmentState
from services.api.validation import require_int32, require_int64
from services.rlmm.page_tokens import Position
from services.rlmm.partitions import KNOWN
from services.rlmm.reaches import REACH_CLASSES, REACH_DIGITS
from services.rlmm.rows import COPY_LEASED, SEGMENT_COLUMNS
from services.rlmm.tables import LIVE, PartitionRow, SegmentEpochRow, SegmentRow, TopicRow

# As text: SQLAlchemy would compile a statement with its own VALUES anew for each call.
_REACHES = (
    text(f"SELECT * FROM {REACH_CLASSES} AS class (digits, longest)")
    .columns(digits=Integer, longest=BigInteger)
    .subquery("reach")
)


@dataclass(frozen=True, slots=True)
class SegmentQuery:
    """Which of a partition's segments; the arguments of list_remote_log_segments."""

    topic_id_partition: TopicIdPartition
    leader_epoch: int | None
    states: Sequence[RemoteLogSegmentState]
    min_offset: int | None

    def __post_init__(self) -> None:
        if self.leader_epoch is not None:
            require_int32(self.leader_epoch, "leader_epoch")
        if self.min_offset is not None:
            require_int64(self.min_offset, "min_offset")

    def fingerprint(self) -> tuple[object, ...]:
        """Equal for equal queries, for a page token to be bound to."""
        states = sorted({state.value for state in self.states})
        tp = str(self.topic_id_partition)
        return ("segments", tp, self.leader_epoch, states, self.min_offset)


@dataclass(frozen=True, slots=True)
class PageShape:
    """Which conditions a question has, whatever their values."""

    has_epoch: bool
    has_states: bool
    has_min_offset: bool
    goes_on: bool
    has_revision: bool

    @classmethod
    def of(cls, query: SegmentQuery, if_revision_not: int | None, after: Position | None) -> Self:
        return cls(
            has_epoch=query.leader_epoch is not None,
            has_states=bool(query.states),
            has_min_offset=query.min_offset is not None,
            goes_on=after is not None,
            has_revision=if_revision_not is not None,
        )


_TOPIC_ID: BindParameter[Any] = bindparam("topic_id", type_=Uuid())
_PARTITION: BindParameter[int] = bindparam("partition", type_=Integer())
_LEADER_EPOCH: BindParameter[int] = bindparam("leader_epoch", type_=Integer())
_MIN_OFFSET: BindParameter[int] = bindparam("min_offset", type_=BigInteger())
_STATES: BindParameter[Any] = bindparam("states", expanding=True)
_AFTER = tuple_(
    bindparam("after_offset", type_=BigInteger()), bindparam("after_segment_id", type_=Uuid())
)
_IF_REVISION_NOT: BindParameter[int] = bindparam("if_revision_not", type_=BigInteger())
_ROWS: BindParameter[int] = bindparam("page_rows", type_=Integer())


def page_values(
    query: SegmentQuery, if_revision_not: int | None, limit: int, after: Position | None
) -> dict[str, object]:
    """For the statement of this question's shape, and a row more than `limit`: it tells that there
    is a next page."""
    tp = query.topic_id_partition
    offset, segment_id = after or (None, None)
    return {
        "topic_id": tp.topic_id,
        "partition": tp.partition,
        "leader_epoch": query.leader_epoch,
        "min_offset": query.min_offset,
        "states": [state.value for state in query.states],
        "after_offset": offset,
        "after_segment_id": segment_id,
        "if_revision_not": if_revision_not,
        "page_rows": limit + 1,
    }


@cache
def page_statement(shape: PageShape) -> Select[*tuple[Any, ...]]:
    """The partition, on each row of the page; one row where there is no segment."""
    page = _page(shape).lateral("page")
    return (
        select(TopicRow.name, PartitionRow.revision, PartitionRow.log_start_offset, *page.c)
        .select_from(PartitionRow)
        .join(TopicRow, TopicRow.topic_id == PartitionRow.topic_id)
        .outerjoin(page, onclause=true())
        .where(PartitionRow.topic_id == _TOPIC_ID, PartitionRow.partition == _PARTITION, KNOWN)
        .order_by(page.c.start_offset, page.c.segment_id)
    )


def _page(shape: PageShape) -> Select[*tuple[Any, ...]]:
    columns: list[ColumnElement[Any]] = [
        *(SegmentRow.__table__.columns[name] for name in SEGMENT_COLUMNS),
        literal_column(COPY_LEASED).label("copy_leased"),
    ]
    if shape.has_epoch:
        # Each found by its key: joined, the planner might read all segments for every row.
        # What is not live has no epochs.
        segment = select(*columns).where(_is_segment_of_epoch()).limit(1).lateral("segment")
        page = (
            select(*segment.c)
            .select_from(SegmentEpochRow)
            .join(segment, true())
            .where(
                SegmentEpochRow.topic_id == _TOPIC_ID,
                SegmentEpochRow.partition == _PARTITION,
                SegmentEpochRow.leader_epoch == _LEADER_EPOCH,
            )
        )
        start, segment_id = SegmentEpochRow.segment_start_offset, SegmentEpochRow.segment_id
    else:
        page = select(*columns).where(_OF_PARTITION)
        start, segment_id = SegmentRow.start_offset, SegmentRow.segment_id
    page = page.order_by(start, segment_id).limit(_ROWS)
    rows = page.selected_columns
    if shape.goes_on:
        page = page.where(tuple_(start, segment_id) > _AFTER)
    if shape.has_states:
        page = page.where(rows.state.in_(_STATES))
    if shape.has_min_offset:
        page = page.where(rows.end_offset >= _MIN_OFFSET)
        if not shape.goes_on:
            page = page.where(start >= _first_start())
    if shape.has_revision:
        page = page.where(PartitionRow.revision != _IF_REVISION_NOT).correlate(PartitionRow)
    return page


_OF_PARTITION = and_(SegmentRow.topic_id == _TOPIC_ID, SegmentRow.partition == _PARTITION, LIVE)


def _first_start() -> ColumnElement[int]:
    """No segment that reaches the least offset starts earlier: the start of the first that holds
    it."""
    digits: ColumnElement[int] = literal_column(REACH_DIGITS)
    most = select(func.max(digits)).select_from(SegmentRow).where(_OF_PARTITION).scalar_subquery()
    holds = (
        select(SegmentRow.start_offset)
        .where(
            _OF_PARTITION,
            digits == _REACHES.c.digits,
            SegmentRow.start_offset.between(_MIN_OFFSET - _REACHES.c.longest, _MIN_OFFSET),
            SegmentRow.end_offset >= _MIN_OFFSET,
        )
        .order_by(SegmentRow.start_offset)
        .limit(1)
        .lateral("holds")
    )
    first = (
        select(func.min(holds.c.start_offset))
        .select_from(_REACHES.join(holds, true()))
        .where(_REACHES.c.digits <= most)
    )
    return func.coalesce(first.scalar_subquery(), _MIN_OFFSET)


def _is_segment_of_epoch() -> ColumnElement[bool]:
    return and_(
        SegmentEpochRow.topic_id == SegmentRow.topic_id,
        SegmentEpochRow.partition == SegmentRow.partition,
        SegmentEpochRow.segment_id == SegmentRow.segment_id,
    )
