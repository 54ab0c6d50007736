"""Lists, a page at a time, in the order of an index: each page is one bounded statement."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    Select,
    and_,
    func,
    literal,
    literal_column,
    select,
    text,
    true,
    tuple_,
)

from services.api.ids import TopicIdPartition
from services.api.partition_queries import PartitionPage, PartitionSummary
from services.api.partitions import RemotePartitionDeleteState
from services.api.segment_queries import SegmentPage
from services.api.segments import RemoteLogSegmentState
from services.api.validation import require_int32, require_int64
from services.rlmm import page_tokens
from services.rlmm.limits import check_text
from services.rlmm.message_sizes import fitting, segment_size_bytes
from services.rlmm.page_tokens import Position
from services.rlmm.partitions import KNOWN, check_topic_name, unknown_partition
from services.rlmm.reaches import REACH_CLASSES, REACH_DIGITS
from services.rlmm.rows import COPY_LEASED, SEGMENT_COLUMNS, AnyRow, ms_of, segment_from_row
from services.rlmm.tables import (
    BEING_DELETED,
    LIVE,
    NOW,
    PartitionRow,
    SegmentEpochRow,
    SegmentRow,
    TopicRow,
)

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


def list_segments(
    connection: Connection,
    query: SegmentQuery,
    *,
    if_revision_not: int | None,
    limit: int,
    after: Position | None,
) -> SegmentPage:
    """One page of segments; see RemoteLogMetadataManager.list_remote_log_segments."""
    tp = query.topic_id_partition
    rows = connection.execute(page_statement(query, if_revision_not, limit, after)).all()
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


def page_statement(
    query: SegmentQuery, if_revision_not: int | None, limit: int, after: Position | None
) -> Select[*tuple[Any, ...]]:
    """The partition, on each row of the page and of one segment more; one row for no segment."""
    tp = query.topic_id_partition
    page = _page(query, if_revision_not, limit, after).lateral("page")
    return (
        select(TopicRow.name, PartitionRow.revision, PartitionRow.log_start_offset, *page.c)
        .select_from(PartitionRow)
        .join(TopicRow, TopicRow.topic_id == PartitionRow.topic_id)
        .outerjoin(page, onclause=true())
        .where(PartitionRow.topic_id == tp.topic_id, PartitionRow.partition == tp.partition, KNOWN)
        .order_by(page.c.start_offset, page.c.segment_id)
    )


def _segment_token(query: SegmentQuery, rows: Sequence[AnyRow], limit: int) -> str:
    if len(rows) <= limit:
        return ""
    last = rows[limit - 1]
    return page_tokens.encode(query.fingerprint(), (last.start_offset, last.segment_id))


def _page(
    query: SegmentQuery, if_revision_not: int | None, limit: int, after: Position | None
) -> Select[*tuple[Any, ...]]:
    """The page and one row more, which tells that there is a next one."""
    tp = query.topic_id_partition
    columns: list[ColumnElement[Any]] = [
        *(SegmentRow.__table__.columns[name] for name in SEGMENT_COLUMNS),
        literal_column(COPY_LEASED).label("copy_leased"),
    ]
    if query.leader_epoch is None:
        page = select(*columns).where(
            SegmentRow.topic_id == tp.topic_id, SegmentRow.partition == tp.partition, LIVE
        )
        start, segment_id = SegmentRow.start_offset, SegmentRow.segment_id
    else:
        # Each found by its key: joined, the planner might read all segments for every row.
        # What is not live has no epochs.
        segment = select(*columns).where(_is_segment_of_epoch()).limit(1).lateral("segment")
        page = (
            select(*segment.c)
            .select_from(SegmentEpochRow)
            .join(segment, true())
            .where(
                SegmentEpochRow.topic_id == tp.topic_id,
                SegmentEpochRow.partition == tp.partition,
                SegmentEpochRow.leader_epoch == query.leader_epoch,
            )
        )
        start, segment_id = SegmentEpochRow.segment_start_offset, SegmentEpochRow.segment_id
    page = _in_order(page, start, segment_id, after)
    rows = page.selected_columns
    if query.states:
        page = page.where(rows.state.in_([state.value for state in query.states]))
    if query.min_offset is not None:
        page = page.where(rows.end_offset >= query.min_offset)
        if after is None:
            page = page.where(start >= _first_start(tp, query.min_offset))
    if if_revision_not is not None:
        page = page.where(PartitionRow.revision != if_revision_not).correlate(PartitionRow)
    return page.limit(limit + 1)


def _first_start(tp: TopicIdPartition, min_offset: int) -> ColumnElement[int]:
    """No segment that reaches `min_offset` starts earlier: the start of the first that holds it."""
    offset = literal(min_offset, BigInteger)
    of_partition = and_(
        SegmentRow.topic_id == tp.topic_id, SegmentRow.partition == tp.partition, LIVE
    )
    digits: ColumnElement[int] = literal_column(REACH_DIGITS)
    most = select(func.max(digits)).select_from(SegmentRow).where(of_partition).scalar_subquery()
    holds = (
        select(SegmentRow.start_offset)
        .where(
            of_partition,
            digits == _REACHES.c.digits,
            SegmentRow.start_offset.between(offset - _REACHES.c.longest, offset),
            SegmentRow.end_offset >= offset,
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
    return func.coalesce(first.scalar_subquery(), offset)


def _is_segment_of_epoch() -> ColumnElement[bool]:
    return and_(
        SegmentEpochRow.topic_id == SegmentRow.topic_id,
        SegmentEpochRow.partition == SegmentRow.partition,
        SegmentEpochRow.segment_id == SegmentRow.segment_id,
    )


def _in_order(
    page: Select[*tuple[Any, ...]], start_offset: Any, segment_id: Any, after: Position | None
) -> Select[*tuple[Any, ...]]:
    page = page.order_by(start_offset, segment_id)
    if after is None:
        return page
    return page.where(tuple_(start_offset, segment_id) > tuple_(*after))


@dataclass(frozen=True, slots=True)
class PartitionQuery:
    """Which partitions; the arguments of list_partitions."""

    topic: str
    delete_states: Sequence[RemotePartitionDeleteState]

    def __post_init__(self) -> None:
        check_text(self.topic, "topic")

    def fingerprint(self) -> tuple[object, ...]:
        """Equal for equal queries, for a page token to be bound to."""
        return ("partitions", self.topic, sorted({state.value for state in self.delete_states}))


def list_partitions(
    connection: Connection, query: PartitionQuery, *, limit: int, after: Position | None
) -> PartitionPage:
    """One page of the known partitions; see RemoteLogMetadataManager.list_partitions."""
    key = tuple_(PartitionRow.topic_id, PartitionRow.partition)
    page = (
        select(
            PartitionRow.topic_id,
            PartitionRow.partition,
            PartitionRow.revision,
            PartitionRow.delete_state,
            PartitionRow.marked_at,
            TopicRow.name,
            NOW.label("read_at"),
        )
        .join(TopicRow, TopicRow.topic_id == PartitionRow.topic_id)
        .where(KNOWN)
        .order_by(PartitionRow.topic_id, PartitionRow.partition)
        .limit(limit + 1)
    )
    if query.topic:
        page = page.where(TopicRow.name == query.topic)
    if query.delete_states:
        states = [state.value for state in query.delete_states]
        page = page.where(BEING_DELETED, PartitionRow.delete_state.in_(states))
    if after is not None:
        partition, topic_id = after
        page = page.where(key > tuple_(topic_id, partition))
    rows = connection.execute(page).all()
    token = ""
    if len(rows) > limit:
        last = rows[limit - 1]
        token = page_tokens.encode(query.fingerprint(), (last.partition, last.topic_id))
    return PartitionPage(tuple(_summary(row) for row in rows[:limit]), token)


def _summary(row: AnyRow) -> PartitionSummary:
    state = row.delete_state
    return PartitionSummary(
        TopicIdPartition(row.topic_id, row.name, row.partition),
        None if state is None else RemotePartitionDeleteState(state),
        row.revision,
        marked_at_ms=None if row.marked_at is None else ms_of(row.marked_at),
        read_at_ms=ms_of(row.read_at),
    )
