"""Reads beside Kafka's: segments by id, where the tier begins, revisions of many partitions.

One statement each, which reads the partition's revision from the same snapshot as the answer.
"""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Connection

from services.api.calls import AtRevision
from services.api.ids import TopicIdPartition
from services.api.segments import RemoteLogSegmentMetadata
from services.rlmm.json_rows import JsonRow, key_of, partition_row, run
from services.rlmm.message_sizes import MAX_PAGE_BYTES, SEGMENT_BYTES
from services.rlmm.partitions import check_topic_name, unknown_partition
from services.rlmm.reaches import REACH_CLASSES, REACH_DIGITS
from services.rlmm.read_sql import IS_KNOWN, PARTITIONS, SEGMENT
from services.rlmm.rows import COPY_LEASED, segment_from_row

# As many as a message holds, at least one.
BY_ID = f"""
    SELECT * FROM (
        SELECT t.name AS topic, p.revision, {SEGMENT}, {COPY_LEASED} AS copy_leased,
            row_number() OVER in_order AS number, sum({SEGMENT_BYTES}) OVER in_order AS bytes
        FROM {PARTITIONS}
        LEFT JOIN segments AS s ON s.topic_id = p.topic_id AND s.partition = p.partition
            AND s.segment_id = ANY(CAST(%(ids)s AS uuid[]))
        WHERE p.topic_id = %(topic_id)s AND p.partition = %(partition)s AND {IS_KNOWN}
        WINDOW in_order AS (ORDER BY s.start_offset, s.segment_id ROWS UNBOUNDED PRECEDING)
    ) AS found
    WHERE number = 1 OR bytes <= {MAX_PAGE_BYTES}
    ORDER BY number"""

_OF_PARTITION = """s.topic_id = p.topic_id AND s.partition = p.partition
                AND s.state = 'COPY_SEGMENT_FINISHED' AND s.state <> 'DELETE_SEGMENT_FINISHED'"""

# Either a finished segment holds the log start, or the first that begins after it is the first.
# (state <> ... is implied, and tells the planner of the index on live segments.)
EARLIEST = f"""
    SELECT t.name AS topic, p.revision, coalesce(
        (SELECT p.log_start_offset
            FROM {REACH_CLASSES} AS reach (digits, longest)
            CROSS JOIN LATERAL (
                SELECT FROM segments AS s
                WHERE {_OF_PARTITION} AND {REACH_DIGITS} = reach.digits
                    AND s.start_offset BETWEEN p.log_start_offset - reach.longest
                        AND p.log_start_offset
                    AND s.end_offset >= p.log_start_offset
                LIMIT 1
            ) AS holds
            LIMIT 1),
        (SELECT s.start_offset FROM segments AS s
            WHERE {_OF_PARTITION} AND s.start_offset > p.log_start_offset
            ORDER BY s.start_offset LIMIT 1)
    ) AS earliest_offset
    FROM {PARTITIONS}
    WHERE p.topic_id = %(topic_id)s AND p.partition = %(partition)s AND {IS_KNOWN}"""

REVISIONS = f"""
    SELECT wanted.place, p.revision, t.name AS topic
    FROM json_to_recordset(%(rows)s) AS wanted (place int, topic_id uuid, partition int)
    JOIN partitions AS p ON p.topic_id = wanted.topic_id AND p.partition = wanted.partition
    JOIN topics AS t ON t.topic_id = p.topic_id
    WHERE {IS_KNOWN}"""


def segments_by_id(
    connection: Connection, tp: TopicIdPartition, ids: Sequence[UUID]
) -> AtRevision[tuple[RemoteLogSegmentMetadata, ...]]:
    """See RemoteLogMetadataManager.remote_log_segment_metadata_by_id."""
    keys = {"topic_id": tp.topic_id, "partition": tp.partition, "ids": list(ids)}
    rows = connection.exec_driver_sql(BY_ID, keys).all()
    if not rows:
        raise unknown_partition(tp)
    check_topic_name(tp, rows[0].topic)
    segments = tuple(
        segment_from_row(row, tp, copy_leased=row.copy_leased)
        for row in rows
        if row.segment_id is not None
    )
    return AtRevision(segments, rows[0].revision)


def earliest_offset(connection: Connection, tp: TopicIdPartition) -> AtRevision[int | None]:
    """See RemoteLogMetadataManager.earliest_log_offset."""
    keys = {"topic_id": tp.topic_id, "partition": tp.partition}
    row = connection.exec_driver_sql(EARLIEST, keys).one_or_none()
    if row is None:
        raise unknown_partition(tp)
    check_topic_name(tp, row.topic)
    return AtRevision(row.earliest_offset, row.revision)


def revisions(connection: Connection, tps: Sequence[TopicIdPartition]) -> list[int]:
    """See RemoteLogMetadataManager.partition_revisions."""
    wanted: list[JsonRow] = [
        {**partition_row(key_of(tp)), "place": place} for place, tp in enumerate(tps)
    ]
    found = [0] * len(tps)
    for row in run(connection, REVISIONS, wanted):
        check_topic_name(tps[row.place], row.topic, f"partitions[{row.place}].topic")
        found[row.place] = row.revision
    return found
