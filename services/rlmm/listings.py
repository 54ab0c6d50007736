"""Lists, a page at a time, in the order of an index: each page is one bounded statement."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, select, tuple_

from services.api.ids import TopicIdPartition
from services.api.partition_queries import PartitionPage, PartitionSummary
from services.api.partitions import RemotePartitionDeleteState
from services.api.segment_queries import SegmentPage
from services.rlmm import page_tokens
from services.rlmm.limits import check_text
from services.rlmm.message_sizes import fitting, segment_size_bytes
from services.rlmm.page_tokens import Position
from services.rlmm.partitions import KNOWN, check_topic_name, unknown_partition
from services.rlmm.rows import AnyRow, ms_of, segment_from_row
from services.rlmm.segment_page_statement import (
    PageShape,
    SegmentQuery,
    page_statement,
    page_values,
)
from services.rlmm.tables import BEING_DELETED, NOW, PartitionRow, TopicRow


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
    return page_tokens.encode(query.fingerprint(), (last.start_offset, last.segment_id))


@dataclass(frozen=True, slots=True)
class PartitionQuery:
    """Which partitions; the arguments of list_partitions."""

    topic: str
    delete_states: Sequence[RemotePartitionDeleteState]
    cluster_id: str

    def __post_init__(self) -> None:
        check_text(self.topic, "topic")
        check_text(self.cluster_id, "cluster_id")

    def fingerprint(self) -> tuple[object, ...]:
        """Equal for equal queries, for a page token to be bound to."""
        states = sorted({state.value for state in self.delete_states})
        of_cluster = (self.cluster_id,) if self.cluster_id else ()
        return ("partitions", self.topic, states, *of_cluster)


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
            PartitionRow.created_at,
            TopicRow.name,
            TopicRow.cluster_id,
            NOW.label("read_at"),
        )
        .join(TopicRow, TopicRow.topic_id == PartitionRow.topic_id)
        .where(KNOWN)
        .order_by(PartitionRow.topic_id, PartitionRow.partition)
        .limit(limit + 1)
    )
    if query.topic:
        page = page.where(TopicRow.name == query.topic)
    if query.cluster_id:
        page = page.where(TopicRow.cluster_id == query.cluster_id)
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
        cluster_id=row.cluster_id,
        known_since_ms=ms_of(row.created_at),
    )
