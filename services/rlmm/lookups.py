"""Reads of one partition that answer with one thing: one statement each, in SQL by hand.

Each statement reads the partition's revision from the same snapshot as the answer.
"""

from uuid import UUID

from sqlalchemy import Connection

from services.api.calls import AtRevision
from services.api.ids import TopicIdPartition
from services.api.segments import RemoteLogSegmentMetadata
from services.rlmm.partitions import check_topic_name, unknown_partition
from services.rlmm.rows import SEGMENT_COLUMNS, AnyRow, segment_from_row

_COLUMNS = ", ".join(f"s.{name}" for name in SEGMENT_COLUMNS)

_OF_EPOCH = """topic_id = %(topic_id)s AND partition = %(partition)s
                AND leader_epoch = %(leader_epoch)s"""

_KNOWN_PARTITION = """
    partitions AS p JOIN topics AS t ON t.topic_id = p.topic_id"""

_IS_KNOWN_PARTITION = """
    p.topic_id = %(topic_id)s AND p.partition = %(partition)s
        AND p.delete_state IS DISTINCT FROM 'DELETE_PARTITION_FINISHED'"""


def _segment_at(offset: str) -> str:
    """SQL for the id of the segment that holds `offset`, an SQL expression; one row or none.

    First Kafka's choice: of the referenced segments, the last one that starts at or below the
    offset, if it reaches the offset. Else, among the segments that overlapped when they finished
    (the index range is bounded by the epoch's longest_reach): the higher broker leader epoch
    where both of two have one, else the later finish. Folded in the order of finishing, a segment
    without an epoch beats all before it; so only the last such one and those after it compete.
    (LIMIT 1 on a row found by its key keeps the planner from joining the tables whole.)
    """
    return f"""
        SELECT coalesce(floor.segment_id, other.segment_id) AS segment_id
        FROM (VALUES (1)) AS one
        LEFT JOIN LATERAL (
            SELECT segment_id, end_offset FROM segment_epochs
            WHERE {_OF_EPOCH} AND referenced AND start_offset <= {offset}
            ORDER BY start_offset DESC LIMIT 1
        ) AS floor ON floor.end_offset >= {offset}
        LEFT JOIN LATERAL (
            SELECT segment_id FROM (
                SELECT e.segment_id, s.broker_leader_epoch, s.finished_revision,
                    max(s.finished_revision) FILTER (WHERE s.broker_leader_epoch IS NULL) OVER ()
                        AS last_without_epoch
                FROM segment_epochs AS e
                CROSS JOIN LATERAL (
                    SELECT broker_leader_epoch, finished_revision FROM segments
                    WHERE topic_id = %(topic_id)s AND partition = %(partition)s
                        AND segment_id = e.segment_id
                    LIMIT 1
                ) AS s
                WHERE floor.segment_id IS NULL AND {_OF_EPOCH} AND overlapped
                    AND start_offset <= {offset} AND end_offset >= {offset}
                    AND start_offset >= {offset} - (
                        SELECT longest_reach FROM highest_offsets WHERE {_OF_EPOCH})
            ) AS candidate
            WHERE finished_revision >= coalesce(last_without_epoch, 0)
            ORDER BY broker_leader_epoch DESC NULLS LAST, finished_revision DESC LIMIT 1
        ) AS other ON true
        WHERE coalesce(floor.segment_id, other.segment_id) IS NOT NULL"""


SEGMENT_FOR_OFFSET = f"""
    SELECT t.name AS topic, p.revision, {_COLUMNS}
    FROM {_KNOWN_PARTITION}
    LEFT JOIN LATERAL ({_segment_at("%(offset)s")}
    ) AS found ON true
    LEFT JOIN segments AS s ON s.topic_id = p.topic_id AND s.partition = p.partition
        AND s.segment_id = found.segment_id
    WHERE {_IS_KNOWN_PARTITION}"""

# From segment to segment, as a broker would ask: the next look-up is for the offset after the
# segment's last one (of the whole segment, as in Kafka: beyond the epoch's end there is nothing).
NEXT_WITH_TXN_INDEX = f"""
    WITH RECURSIVE chain AS (
        SELECT s.segment_id, s.txn_idx_empty, s.end_offset
        FROM ({_segment_at("%(offset)s")}
        ) AS found
        JOIN segments AS s ON s.topic_id = %(topic_id)s AND s.partition = %(partition)s
            AND s.segment_id = found.segment_id
        UNION ALL
        SELECT s.segment_id, s.txn_idx_empty, s.end_offset
        FROM chain
        CROSS JOIN LATERAL ({_segment_at("chain.end_offset + 1")}
        ) AS found
        JOIN segments AS s ON s.topic_id = %(topic_id)s AND s.partition = %(partition)s
            AND s.segment_id = found.segment_id
        WHERE chain.txn_idx_empty AND chain.end_offset < 9223372036854775807
    )
    SELECT t.name AS topic, p.revision, {_COLUMNS}
    FROM {_KNOWN_PARTITION}
    LEFT JOIN chain ON NOT chain.txn_idx_empty
    LEFT JOIN segments AS s ON s.topic_id = p.topic_id AND s.partition = p.partition
        AND s.segment_id = chain.segment_id
    WHERE {_IS_KNOWN_PARTITION}"""

HIGHEST_OFFSET = f"""
    SELECT t.name AS topic, p.revision,
        (SELECT highest_offset FROM highest_offsets WHERE {_OF_EPOCH}) AS answer
    FROM {_KNOWN_PARTITION}
    WHERE {_IS_KNOWN_PARTITION}"""

# A size of -1 is an unknown one.
LOG_SIZE = f"""
    SELECT t.name AS topic, p.revision, (
        SELECT coalesce(sum(greatest(s.segment_size_in_bytes, 0)), 0)::bigint
        FROM segment_epochs AS e
        JOIN segments AS s USING (topic_id, partition, segment_id)
        WHERE {_OF_EPOCH}
    ) AS answer
    FROM {_KNOWN_PARTITION}
    WHERE {_IS_KNOWN_PARTITION}"""


def find_segment(
    connection: Connection, statement: str, tp: TopicIdPartition, leader_epoch: int, offset: int
) -> AtRevision[RemoteLogSegmentMetadata | None]:
    """Run SEGMENT_FOR_OFFSET or NEXT_WITH_TXN_INDEX."""
    row = _read(connection, statement, tp, leader_epoch=leader_epoch, offset=offset)
    segment = None if row.segment_id is None else segment_from_row(row, tp)
    return AtRevision(segment, row.revision)


def highest_offset(
    connection: Connection, tp: TopicIdPartition, leader_epoch: int
) -> AtRevision[int | None]:
    row = _read(connection, HIGHEST_OFFSET, tp, leader_epoch=leader_epoch)
    return AtRevision(row.answer, row.revision)


def log_size(connection: Connection, tp: TopicIdPartition, leader_epoch: int) -> AtRevision[int]:
    row = _read(connection, LOG_SIZE, tp, leader_epoch=leader_epoch)
    return AtRevision(row.answer, row.revision)


def _read(connection: Connection, statement: str, tp: TopicIdPartition, **of: int) -> AnyRow:
    keys: dict[str, UUID | int] = {"topic_id": tp.topic_id, "partition": tp.partition, **of}
    row = connection.exec_driver_sql(statement, keys).one_or_none()
    if row is None:
        raise unknown_partition(tp)
    check_topic_name(tp, row.topic)
    return row
