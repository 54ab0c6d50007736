"""Lists, a page at a time, in the order of an index: each page is one bounded statement."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from sqlalchemy import Connection, Select, and_, select, true, tuple_

from services.api.ids import TopicIdPartition
from services.api.partitions import RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import PartitionPage, PartitionSummary, SegmentPage
from services.api.segments import RemoteLogSegmentState
from services.api.validation import require_int32, require_int64
from services.rlmm import page_tokens
from services.rlmm.limits import check_text
from services.rlmm.page_tokens import Position
from services.rlmm.partitions import KNOWN, check_topic_name, unknown_partition
from services.rlmm.rows import SEGMENT_COLUMNS, AnyRow, ms_of, segment_from_row
from services.rlmm.tables import (
    BEING_DELETED,
    LIVE,
    NOW,
    PartitionRow,
    SegmentEpochRow,
    SegmentRow,
    TopicRow,
)

MAX_PAGE_BYTES = 3 * 1024 * 1024
"""A page is one message, and none may be larger than 4 MiB."""
MAX_NAMES_AND_NUMBERS_BYTES = 512
MAX_LEADER_EPOCH_BYTES = 24


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
    page = _page(query, if_revision_not, limit, after).lateral("page")
    rows = connection.execute(
        select(TopicRow.name, PartitionRow.revision, PartitionRow.log_start_offset, *page.c)
        .select_from(PartitionRow)
        .join(TopicRow, TopicRow.topic_id == PartitionRow.topic_id)
        .outerjoin(page, onclause=true())
        .where(PartitionRow.topic_id == tp.topic_id, PartitionRow.partition == tp.partition, KNOWN)
        .order_by(page.c.start_offset, page.c.segment_id)
    ).all()
    if not rows:
        raise unknown_partition(tp)
    check_topic_name(tp, rows[0].name)
    revision, log_start_offset = rows[0].revision, rows[0].log_start_offset
    if revision == if_revision_not:
        return SegmentPage((), "", revision, not_modified=True, log_start_offset=log_start_offset)
    found = [row for row in rows if row.segment_id is not None]
    fitting = _fitting(found[:limit])
    segments = tuple(segment_from_row(row, tp) for row in found[:fitting])
    token = _segment_token(query, found, fitting)
    return SegmentPage(segments, token, revision, log_start_offset=log_start_offset)


def _fitting(rows: Sequence[AnyRow]) -> int:
    """How many of `rows` one message holds: at least one, which the limits of a segment see to."""
    sizes = accumulate(_size_bytes(row) for row in rows)
    return max(bisect_right(list(sizes), MAX_PAGE_BYTES), min(len(rows), 1))


def _size_bytes(row: AnyRow) -> int:
    """No less than the segment takes in a message."""
    of_epochs = MAX_LEADER_EPOCH_BYTES * len(row.leader_epochs)
    return MAX_NAMES_AND_NUMBERS_BYTES + len(row.custom_metadata or b"") + of_epochs


def _segment_token(query: SegmentQuery, rows: Sequence[AnyRow], limit: int) -> str:
    if len(rows) <= limit:
        return ""
    last = rows[limit - 1]
    return page_tokens.encode(query.fingerprint(), (last.start_offset, last.segment_id))


def _page(
    query: SegmentQuery, if_revision_not: int | None, limit: int, after: Position | None
) -> Select[*tuple[Any, ...]]:
    """The page and one row more, which tells that there is a next one."""
    columns = [SegmentRow.__table__.columns[name] for name in SEGMENT_COLUMNS]
    tp = query.topic_id_partition
    page = select(*columns).where(
        SegmentRow.topic_id == tp.topic_id, SegmentRow.partition == tp.partition, LIVE
    )
    if query.leader_epoch is None:
        page = _in_order(page, SegmentRow.start_offset, SegmentRow.segment_id, after)
    else:
        page = page.join(SegmentEpochRow, _epoch_of_segment()).where(
            SegmentEpochRow.topic_id == tp.topic_id,
            SegmentEpochRow.partition == tp.partition,
            SegmentEpochRow.leader_epoch == query.leader_epoch,
        )
        start = SegmentEpochRow.segment_start_offset
        page = _in_order(page, start, SegmentEpochRow.segment_id, after)
    if query.states:
        page = page.where(SegmentRow.state.in_([state.value for state in query.states]))
    if query.min_offset is not None:
        page = page.where(SegmentRow.end_offset >= query.min_offset)
    if if_revision_not is not None:
        page = page.where(PartitionRow.revision != if_revision_not).correlate(PartitionRow)
    return page.limit(limit + 1)


def _epoch_of_segment() -> Any:
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
