"""List segments and partitions a page at a time, each page one bounded statement."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from services.api.ids import TopicIdPartition
from services.api.partitions import RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import (
    KeptPage,
    PartitionPage,
    PartitionSummary,
    SegmentPage,
)
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.validation import require_int32, require_int64
from services.rlmm.database.db import (
    IS_KNOWN,
    PARTITIONS,
    PARTITIONS_IN_ORDER,
    SEGMENT,
    execute,
    key_of,
    key_values,
)
from services.rlmm.database.epoch_index import RANGE_CLASS, RANGE_CLASSES
from services.rlmm.database.limits import (
    MAX_NAMES_AND_NUMBERS_BYTES,
    Page,
    Query,
    check_text,
    segment_size_bytes,
)
from services.rlmm.database.rows import (
    COPY_LEASED,
    IS_LIVE_HOLD,
    TOTALS,
    AnyRow,
    kept_until_ms_of,
    ms_of,
    segment_from_row,
    totals_of,
)
from services.rlmm.database.tables import BEING_DELETED, IS_KEPT
from services.rlmm.deletion_bound import TODAY
from services.rlmm.guards import check_topic_name, unknown_partition


def _is_on_hold(row: str, offsets: str = "") -> str:
    """Return the SQL condition for a row that a hold of any kind but EXPORT is over."""
    return f"""EXISTS (
            SELECT FROM holds AS h
            WHERE h.kind <> 'EXPORT' AND {IS_LIVE_HOLD} AND (h.topic_id IS NULL
                OR h.topic_id = {row}.topic_id
                    AND (h.partition IS NULL OR h.partition = {row}.partition)){offsets})"""


_IS_SEGMENT_HELD = _is_on_hold(
    "s",
    """
                AND h.first_offset <= s.end_offset
                AND (h.last_offset IS NULL OR s.start_offset <= h.last_offset)""",
)
IS_ON_HOLD = _is_on_hold("p")
_COLUMNS = f"{SEGMENT}, s.kept_until, {COPY_LEASED} AS copy_leased"
_OF_PARTITION = """s.topic_id = %(topic_id)s AND s.partition = %(partition)s
            AND s.state <> 'DELETE_SEGMENT_FINISHED'"""

# Each row is found by its key: in a join the planner might read all segments for every row. Only
# live segments have epochs.
_OF_EPOCH = f"""
        SELECT segment.* FROM segment_epochs AS e
        CROSS JOIN LATERAL (
            SELECT {_COLUMNS} FROM segments AS s
            WHERE s.topic_id = e.topic_id AND s.partition = e.partition
                AND s.segment_id = e.segment_id
            LIMIT 1
        ) AS segment
        WHERE e.topic_id = %(topic_id)s AND e.partition = %(partition)s
            AND e.leader_epoch = %(leader_epoch)s"""

# The topic's row is found by its key, as those of partitions are.
KEPT = f"""
    SELECT s.topic_id, t.name AS topic, s.partition, s.kept_until, {SEGMENT}
    FROM segments AS s
    CROSS JOIN LATERAL (SELECT * FROM topics WHERE topics.topic_id = s.topic_id LIMIT 1) AS t
    WHERE {{conditions}}
    ORDER BY s.kept_until, s.segment_id LIMIT %(rows)s"""

# The start of the first segment that holds the least offset.
_FIRST_START = f"""coalesce((
            SELECT min(holds.start_offset)
            FROM {RANGE_CLASSES} AS range (digits, longest)
            CROSS JOIN LATERAL (
                SELECT s.start_offset FROM segments AS s
                WHERE {_OF_PARTITION} AND {RANGE_CLASS} = range.digits
                    AND s.start_offset BETWEEN %(min_offset)s - range.longest AND %(min_offset)s
                    AND s.end_offset >= %(min_offset)s
                ORDER BY s.start_offset LIMIT 1
            ) AS holds
            WHERE range.digits <= (
                SELECT max({RANGE_CLASS}) FROM segments AS s WHERE {_OF_PARTITION})
        ), %(min_offset)s)"""


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

    def fingerprint(self) -> Query:
        states = sorted({state.value for state in self.states})
        tp = str(self.topic_id_partition)
        return ("segments", tp, self.leader_epoch, states, self.min_offset)


def page_statement(
    query: SegmentQuery, if_revision_not: int | None, page: Page
) -> tuple[str, dict[str, object]]:
    """Return the statement and its values that read a page, with the partition on each row.

    One row if there is no segment.
    """
    tp = query.topic_id_partition
    values: dict[str, object] = {**key_values(key_of(tp)), "rows": page.limit + 1}
    if query.leader_epoch is None:
        segments, order = f"SELECT {_COLUMNS} FROM segments AS s WHERE {_OF_PARTITION}", "s"
        start, segment_id = "s.start_offset", "s.segment_id"
    else:
        segments, order = _OF_EPOCH, "segment"
        start, segment_id = "e.segment_start_offset", "e.segment_id"
        values["leader_epoch"] = query.leader_epoch
    conditions = list[str]()
    if page.after is not None:
        conditions.append(f"({start}, {segment_id}) > (%(after_offset)s, %(after_segment_id)s)")
        values["after_offset"], values["after_segment_id"] = page.after
    if query.states:
        conditions.append(f"{order}.state = ANY(%(states)s)")
        values["states"] = [state.value for state in query.states]
    if query.min_offset is not None:
        conditions.append(f"{order}.end_offset >= %(min_offset)s")
        values["min_offset"] = query.min_offset
        if page.after is None:
            conditions.append(f"{start} >= {_FIRST_START}")
    if if_revision_not is not None:
        conditions.append("p.revision <> %(if_revision_not)s")
        values["if_revision_not"] = if_revision_not
    statement = f"""
    SELECT t.name AS topic, p.revision, p.log_start_offset, page.*
    FROM {PARTITIONS}
    LEFT JOIN LATERAL (
        {" AND ".join([segments, *conditions])}
        ORDER BY {start}, {segment_id} LIMIT %(rows)s
    ) AS page ON true
    WHERE p.topic_id = %(topic_id)s AND p.partition = %(partition)s AND {IS_KNOWN}
    ORDER BY page.start_offset, page.segment_id"""
    return statement, values


def list_segments(
    connection: Connection, query: SegmentQuery, if_revision_not: int | None, page: Page
) -> SegmentPage:
    """Read one page of segments; see RemoteLogMetadataManager.list_remote_log_segments."""
    tp = query.topic_id_partition
    statement, values = page_statement(query, if_revision_not, page)
    rows = execute(connection, statement, values).fetchall()
    if not rows:
        raise unknown_partition(tp)
    check_topic_name(tp, rows[0].topic)
    revision, log_start_offset = rows[0].revision, rows[0].log_start_offset
    if revision == if_revision_not:
        return SegmentPage((), "", revision, not_modified=True, log_start_offset=log_start_offset)
    listed, token = page.cut(
        [row for row in rows if row.segment_id is not None],
        segment_size_bytes,
        lambda row: (row.start_offset, row.segment_id),
    )
    segments = tuple(
        segment_from_row(row, tp, copy_leased=row.copy_leased, kept_until_ms=kept_until_ms_of(row))
        for row in listed
    )
    return SegmentPage(segments, token, revision, log_start_offset=log_start_offset)


def list_kept(connection: Connection, topic: str, due_only: bool, page: Page) -> KeptPage:
    """Read one page of the kept segments; see RemoteLogMetadataManager.list_kept_segments."""
    conditions, values = [IS_KEPT], dict[str, object](rows=page.limit + 1)
    if topic:
        conditions.append("t.name = %(topic)s")
        values["topic"] = topic
    if due_only:
        conditions += [
            "s.kept_until <= clock_timestamp()",
            f"NOT {_IS_SEGMENT_HELD}",
        ]
    if page.after is not None:
        conditions.append(
            "(s.kept_until, s.segment_id) > "
            "(timestamptz 'epoch' + %(after_ms)s * interval '1 millisecond', %(after_segment_id)s)"
        )
        values["after_ms"], values["after_segment_id"] = page.after
    statement = KEPT.format(conditions=" AND ".join(conditions))
    rows, token = page.cut(
        execute(connection, statement, values).fetchall(),
        segment_size_bytes,
        lambda row: (kept_until_ms_of(row) or 0, row.segment_id),
    )
    return KeptPage(tuple(map(_kept_segment, rows)), token)


def _kept_segment(row: AnyRow) -> RemoteLogSegmentMetadata:
    tp = TopicIdPartition(row.topic_id, row.topic, row.partition)
    return segment_from_row(row, tp, kept_until_ms=kept_until_ms_of(row))


@dataclass(frozen=True, slots=True)
class PartitionQuery:
    """The partitions to list: the arguments of list_partitions."""

    topic: str
    delete_states: Sequence[RemotePartitionDeleteState]
    cluster_id: str

    def __post_init__(self) -> None:
        check_text(self.topic, "topic")
        check_text(self.cluster_id, "cluster_id")

    def fingerprint(self) -> Query:
        states = sorted({state.value for state in self.delete_states})
        of_cluster = (self.cluster_id,) if self.cluster_id else ()
        return ("partitions", self.topic, states, *of_cluster)


PARTITION_PAGE = f"""
    SELECT p.topic_id, p.partition, p.revision, p.delete_state, p.marked_at, p.created_at, t.name,
        t.cluster_id, {IS_ON_HOLD} AS is_on_hold,
        coalesce((t.deletions_refused_at AT TIME ZONE 'UTC')::date = {TODAY}, false)
            AS awaits_confirmation,
        clock_timestamp() AS read_at, {", ".join(f"p.{name}" for name in TOTALS)}
    FROM {PARTITIONS_IN_ORDER}
    WHERE {{conditions}}
    ORDER BY p.topic_id, p.partition LIMIT %(rows)s"""


def partition_statement(query: PartitionQuery, page: Page) -> tuple[str, dict[str, object]]:
    """Return the statement and its values that read a page of the known partitions."""
    conditions, values = [IS_KNOWN], dict[str, object](rows=page.limit + 1)
    if query.topic:
        conditions.append(
            "p.topic_id = ANY(ARRAY(SELECT topic_id FROM topics WHERE name = %(topic)s))"
        )
        values["topic"] = query.topic
    if query.cluster_id:
        conditions.append("t.cluster_id = %(cluster_id)s")
        values["cluster_id"] = query.cluster_id
    if query.delete_states:
        conditions.append("p.delete_state = ANY(%(states)s)")
        if RemotePartitionDeleteState.DELETE_PARTITION_FINISHED in query.delete_states:
            conditions.remove(IS_KNOWN)
        else:
            conditions.append(f"p.{BEING_DELETED}")  # of which there is an index
        values["states"] = [state.value for state in query.delete_states]
    if page.after is not None:
        conditions.append("(p.topic_id, p.partition) > (%(topic_id)s, %(partition)s)")
        values["partition"], values["topic_id"] = page.after
    return PARTITION_PAGE.format(conditions=" AND ".join(conditions)), values


def list_partitions(connection: Connection, query: PartitionQuery, page: Page) -> PartitionPage:
    """Read one page of the known partitions; see RemoteLogMetadataManager.list_partitions."""
    rows, token = page.cut(
        execute(connection, *partition_statement(query, page)).fetchall(),
        lambda _: MAX_NAMES_AND_NUMBERS_BYTES,
        lambda row: (row.partition, row.topic_id),
    )
    return PartitionPage(tuple(map(_summary, rows)), token)


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
        is_on_hold=row.is_on_hold,
        awaits_confirmation=row.awaits_confirmation,
    )
