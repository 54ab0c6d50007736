"""List segments and partitions a page at a time, each page one bounded statement."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnElement,
    Connection,
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
from services.api.partitions import RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import PartitionPage, PartitionSummary, SegmentPage
from services.api.segments import RemoteLogSegmentState
from services.api.validation import require_int32, require_int64
from services.rlmm.changes.partitions import KNOWN
from services.rlmm.database import limits
from services.rlmm.database.db import IS_KNOWN, PARTITIONS
from services.rlmm.database.epoch_index import RANGE_CLASS, RANGE_CLASSES
from services.rlmm.database.limits import Position, check_text, fitting, segment_size_bytes
from services.rlmm.database.rows import (
    COPY_LEASED,
    SEGMENT_COLUMNS,
    TOTALS,
    AnyRow,
    ms_of,
    segment_from_row,
    totals_of,
)
from services.rlmm.database.tables import (
    BEING_DELETED,
    LIVE,
    PartitionRow,
    SegmentEpochRow,
    SegmentRow,
    TopicRow,
)
from services.rlmm.guards import check_topic_name, unknown_partition

# As text: SQLAlchemy would compile a statement with its own VALUES again for each call.
_REACHES = (
    text(f"SELECT * FROM {RANGE_CLASSES} AS class (digits, longest)")
    .columns(digits=Integer, longest=BigInteger)
    .subquery("reach")
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


@dataclass(frozen=True, slots=True)
class SegmentQuery:
    """The partition and range whose segments are listed: the arguments of
    list_remote_log_segments.
    """

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
        """Return the value to which page tokens are bound: equal for equal queries."""
        states = sorted({state.value for state in self.states})
        tp = str(self.topic_id_partition)
        return ("segments", tp, self.leader_epoch, states, self.min_offset)


@dataclass(frozen=True, slots=True)
class PageShape:
    """The conditions that a query has, whatever their values."""

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


def page_values(
    query: SegmentQuery, if_revision_not: int | None, limit: int, after: Position | None
) -> dict[str, object]:
    """Return the values of a query's statement, for one row more than `limit`.

    That row shows whether there is a next page.
    """
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
    """Select the partition on each row of the page; one row if there is no segment."""
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
        # Find each row by its key: in a join the planner might read all segments for every row.
        # Only live segments have epochs.
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
    """Select the start of the first segment that holds the least offset."""
    digits: ColumnElement[int] = literal_column(RANGE_CLASS)
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


def list_segments(
    connection: Connection,
    query: SegmentQuery,
    *,
    if_revision_not: int | None,
    limit: int,
    after: Position | None,
) -> SegmentPage:
    """Read one page of segments; see RemoteLogMetadataManager.list_remote_log_segments."""
    tp = query.topic_id_partition
    statement = page_statement(PageShape.of(query, if_revision_not, after))
    values = page_values(query, if_revision_not, limit, after)
    rows = connection.execute(statement, values).all()
    if not rows:
        raise unknown_partition(tp)
    check_topic_name(tp, rows[0].name)
    revision, log_start_offset = rows[0].revision, rows[0].log_start_offset
    if revision == if_revision_not:
        return SegmentPage((), "", revision, not_modified=True, log_start_offset=log_start_offset)
    found = [row for row in rows if row.segment_id is not None]
    count = fitting(segment_size_bytes(row) for row in found[:limit])
    segments = tuple(
        segment_from_row(row, tp, copy_leased=row.copy_leased) for row in found[:count]
    )
    token = _segment_token(query, found, count)
    return SegmentPage(segments, token, revision, log_start_offset=log_start_offset)


def _segment_token(query: SegmentQuery, rows: Sequence[AnyRow], limit: int) -> str:
    if len(rows) <= limit:
        return ""
    last = rows[limit - 1]
    return limits.encode(query.fingerprint(), (last.start_offset, last.segment_id))


@dataclass(frozen=True, slots=True)
class PartitionQuery:
    """The partitions to list: the arguments of list_partitions."""

    topic: str
    delete_states: Sequence[RemotePartitionDeleteState]
    cluster_id: str

    def __post_init__(self) -> None:
        check_text(self.topic, "topic")
        check_text(self.cluster_id, "cluster_id")

    def fingerprint(self) -> tuple[object, ...]:
        """Return the value to which page tokens are bound: equal for equal queries."""
        states = sorted({state.value for state in self.delete_states})
        of_cluster = (self.cluster_id,) if self.cluster_id else ()
        return ("partitions", self.topic, states, *of_cluster)


PARTITION_PAGE = f"""
    SELECT p.topic_id, p.partition, p.revision, p.delete_state, p.marked_at, p.created_at, t.name,
        t.cluster_id, coalesce(t.config ->> 'sediment.hold' = 'true', false) AS is_held,
        clock_timestamp() AS read_at, {", ".join(f"p.{name}" for name in TOTALS)}
    FROM {PARTITIONS}
    WHERE {{conditions}}
    ORDER BY p.topic_id, p.partition LIMIT :rows"""


def list_partitions(
    connection: Connection, query: PartitionQuery, *, limit: int, after: Position | None
) -> PartitionPage:
    """Read one page of the known partitions; see RemoteLogMetadataManager.list_partitions."""
    conditions, values = [IS_KNOWN], dict[str, object](rows=limit + 1)
    if query.topic:
        conditions.append("t.name = :topic")
        values["topic"] = query.topic
    if query.cluster_id:
        conditions.append("t.cluster_id = :cluster_id")
        values["cluster_id"] = query.cluster_id
    if query.delete_states:
        conditions += [f"p.{BEING_DELETED}", "p.delete_state = ANY(:states)"]
        values["states"] = [state.value for state in query.delete_states]
    if after is not None:
        conditions.append("(p.topic_id, p.partition) > (:after_topic_id, :after_partition)")
        values["after_partition"], values["after_topic_id"] = after
    page = text(PARTITION_PAGE.format(conditions=" AND ".join(conditions)))
    rows = connection.execute(page, values).all()
    token = ""
    if len(rows) > limit:
        last = rows[limit - 1]
        token = limits.encode(query.fingerprint(), (last.partition, last.topic_id))
    return PartitionPage(tuple(_summary(row) for row in rows[:limit]), token)


def _summary(row: AnyRow) -> PartitionSummary:
    state = row.delete_state
    return PartitionSummary(
        TopicIdPartition(row.topic_id, row.name, row.partition),
        None if state is None else RemotePartitionDeleteState(state),
        row.revision,
        marked_at_ms=None if row.marked_at is None else ms_of(row.marked_at),
        read_at_ms=ms_of(row.read_at),
        cluster_id=row.cluster_id,
        known_since_ms=ms_of(row.created_at),
        totals=totals_of(row),
        is_held=row.is_held,
    )
