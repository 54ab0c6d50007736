"""Reads beside Kafka's: segments by id, where the tier begins, revisions of many partitions.

One statement each, which reads the partition's revision from the same snapshot as the answer.
"""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Connection

from services.api.calls import AtRevision
from services.api.ids import TopicIdPartition
from services.api.segment_batches import MAX_BATCH, MAX_REVISIONS
from services.api.segments import RemoteLogSegmentMetadata
from services.api.validation import require, within
from services.rlmm.json_rows import JsonRow, key_of, partition_row, run
from services.rlmm.message_sizes import fitting, segment_size_bytes
from services.rlmm.partitions import check_topic_name, unknown_partition
from services.rlmm.reaches import REACH_CLASSES, REACH_DIGITS
from services.rlmm.rows import SEGMENT_COLUMNS, segment_from_row

_COLUMNS = ", ".join(f"s.{name}" for name in SEGMENT_COLUMNS)

_IS_KNOWN = "p.delete_state IS DISTINCT FROM 'DELETE_PARTITION_FINISHED'"

BY_ID = f"""
    SELECT t.name AS topic, p.revision, {_COLUMNS}
    FROM partitions AS p JOIN topics AS t ON t.topic_id = p.topic_id
    LEFT JOIN segments AS s ON s.topic_id = p.topic_id AND s.partition = p.partition
        AND s.segment_id = ANY(CAST(%(ids)s AS uuid[]))
    WHERE p.topic_id = %(topic_id)s AND p.partition = %(partition)s AND {_IS_KNOWN}
    ORDER BY s.start_offset, s.segment_id"""

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
    FROM partitions AS p JOIN topics AS t ON t.topic_id = p.topic_id
    WHERE p.topic_id = %(topic_id)s AND p.partition = %(partition)s AND {_IS_KNOWN}"""

REVISIONS = f"""
    SELECT wanted.place, p.revision, t.name AS topic
    FROM json_to_recordset(%(rows)s) AS wanted (place int, topic_id uuid, partition int)
    JOIN partitions AS p ON p.topic_id = wanted.topic_id AND p.partition = wanted.partition
    JOIN topics AS t ON t.topic_id = p.topic_id
    WHERE {_IS_KNOWN}"""


def check_ids(ids: Sequence[UUID]) -> None:
    """Raise InvalidRequestError where there are none or too many."""
    count = len(ids)
    require(1 <= count <= MAX_BATCH, "ids", f"must be 1 to {MAX_BATCH}, are {count}")


def segments_by_id(
    connection: Connection, tp: TopicIdPartition, ids: Sequence[UUID]
) -> AtRevision[tuple[RemoteLogSegmentMetadata, ...]]:
    """See RemoteLogMetadataManager.remote_log_segment_metadata_by_id."""
    keys = {"topic_id": tp.topic_id, "partition": tp.partition, "ids": list(ids)}
    rows = connection.exec_driver_sql(BY_ID, keys).all()
    if not rows:
        raise unknown_partition(tp)
    check_topic_name(tp, rows[0].topic)
    found = [row for row in rows if row.segment_id is not None]
    count = fitting(segment_size_bytes(row) for row in found)
    segments = tuple(segment_from_row(row, tp) for row in found[:count])
    return AtRevision(segments, rows[0].revision)


def earliest_offset(connection: Connection, tp: TopicIdPartition) -> AtRevision[int | None]:
    """See RemoteLogMetadataManager.earliest_log_offset."""
    keys = {"topic_id": tp.topic_id, "partition": tp.partition}
    row = connection.exec_driver_sql(EARLIEST, keys).one_or_none()
    if row is None:
        raise unknown_partition(tp)
    check_topic_name(tp, row.topic)
    return AtRevision(row.earliest_offset, row.revision)


def check_partitions(tps: Sequence[TopicIdPartition]) -> None:
    """Raise InvalidRequestError where there are none or too many."""
    count, most = len(tps), MAX_REVISIONS
    require(1 <= count <= most, "partitions", f"must be 1 to {most}, are {count}")


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
