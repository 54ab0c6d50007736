"""Reads of one partition that answer with one thing: one statement each, in SQL by hand.

Each statement reads the partition's revision from the same snapshot as the answer.
"""

from uuid import UUID

from services.api.calls import AtRevision
from services.api.ids import TopicIdPartition
from services.api.segments import RemoteLogSegmentMetadata
from services.api.validation import INT64_MAX
from services.rlmm.partitions import check_topic_name, unknown_partition
from services.rlmm.reaches import REACH_CLASSES, REACH_DIGITS
from services.rlmm.read_sql import IS_KNOWN, PARTITIONS, SEGMENT
from services.rlmm.rows import SEGMENT_COLUMNS, AnyRow, segment_from_row
from services.rlmm.tables import STOP
from services.rlmm.transactions import Transactions


def _segment(segment_id: str) -> str:
    """SQL for the row of the segment with an id; LIMIT 1 as in _segment_at."""
    return f"""
        SELECT {", ".join(SEGMENT_COLUMNS)}, finished_revision FROM segments
        WHERE topic_id = %(topic_id)s AND partition = %(partition)s AND segment_id = {segment_id}
        LIMIT 1"""


_OF_EPOCH = """topic_id = %(topic_id)s AND partition = %(partition)s
                AND leader_epoch = %(leader_epoch)s"""

_IS_KNOWN_PARTITION = f"""
    p.topic_id = %(topic_id)s AND p.partition = %(partition)s AND {IS_KNOWN}"""


def _segment_at(offset: str) -> str:
    """SQL for the id of the segment that holds `offset`, an SQL expression; one row, whose id is
    NULL where there is none, or no row.

    First Kafka's choice: of the referenced segments, the last one that starts at or below the
    offset, if it reaches the offset. Else, among the segments that overlapped when they finished
    and hold the offset: the higher broker leader epoch where both of two have one, else the later
    finish. Folded in the order of finishing, a segment without an epoch beats all before it; so
    only the last such one and those after it compete.

    Nothing that starts more than longest_reach before the offset holds it. That bound keeps both
    searches from walking back through what was hidden long ago and is not vacuumed yet.
    (OFFSET 0, and LIMIT 1 on a row found by its key, keep the planner from turning the search
    round: with no statistics yet it would read all of a partition's rows.)
    """
    return f"""
        SELECT coalesce(floor.segment_id, (
            WITH candidate AS MATERIALIZED (
                SELECT e.segment_id, s.broker_leader_epoch, s.finished_revision
                FROM {REACH_CLASSES} AS reach (digits, longest)
                CROSS JOIN LATERAL (
                    SELECT segment_id FROM segment_epochs
                    WHERE {_OF_EPOCH} AND overlapped AND {REACH_DIGITS} = reach.digits
                        AND start_offset BETWEEN {offset} - reach.longest AND {offset}
                        AND end_offset >= {offset}
                    OFFSET 0
                ) AS e
                CROSS JOIN LATERAL ({_segment("e.segment_id")}
                ) AS s
                WHERE reach.digits <= length(CAST(epoch.longest_reach AS text))
            )
            SELECT segment_id FROM candidate WHERE finished_revision = (
                SELECT (max(ARRAY[coalesce(broker_leader_epoch, -1), finished_revision]))[2]
                FROM candidate WHERE finished_revision >= (
                    SELECT coalesce(max(finished_revision), 0)
                    FROM candidate WHERE broker_leader_epoch IS NULL))
            LIMIT 1
        )) AS segment_id
        FROM highest_offsets AS epoch
        LEFT JOIN LATERAL (
            SELECT segment_id, end_offset FROM segment_epochs
            WHERE {_OF_EPOCH} AND referenced
                AND start_offset BETWEEN {offset} - epoch.longest_reach AND {offset}
            ORDER BY start_offset DESC LIMIT 1
        ) AS floor ON floor.end_offset >= {offset}
        WHERE {_OF_EPOCH}"""


SEGMENT_AT = _segment_at("%(offset)s")
"""SQL for an id; its four parameters may as well be columns."""

SEGMENT_FOR_OFFSET = f"""
    SELECT t.name AS topic, p.revision, {SEGMENT}
    FROM {PARTITIONS}
    LEFT JOIN LATERAL ({SEGMENT_AT}
    ) AS found ON true
    LEFT JOIN LATERAL ({_segment("found.segment_id")}
    ) AS s ON true
    WHERE {_IS_KNOWN_PARTITION}"""

# From the segment `chain`, one of the map that shares no offset with another: the offset after the
# last segment before the next stop. Up to there a search would pass from each segment to the one
# that starts where it ends.
_PAST_THE_PASSABLE = f"""
        SELECT last.end_offset + 1
        FROM (
            SELECT segment_id, start_offset, end_offset, overlapped FROM segment_epochs
            WHERE {_OF_EPOCH} AND referenced AND start_offset <= chain.end_offset
            ORDER BY start_offset DESC LIMIT 1
        ) AS own
        CROSS JOIN LATERAL (
            SELECT coalesce(min(start_offset), {INT64_MAX}) AS start_offset FROM segment_epochs
            WHERE {_OF_EPOCH} AND {STOP} AND start_offset > own.start_offset
        ) AS stop
        CROSS JOIN LATERAL (
            SELECT end_offset FROM segment_epochs
            WHERE {_OF_EPOCH} AND referenced AND start_offset < stop.start_offset
                AND end_offset < {INT64_MAX}
            ORDER BY start_offset DESC LIMIT 1
        ) AS last
        WHERE own.segment_id = chain.segment_id AND own.end_offset = chain.end_offset
            AND NOT own.overlapped"""

# From segment to segment, as a broker would ask: the next look-up is for the offset after the
# segment's last one (of the whole segment, as in Kafka: beyond the epoch's end there is nothing).
NEXT_WITH_TXN_INDEX = f"""
    WITH RECURSIVE chain AS (
        SELECT s.segment_id, s.txn_idx_empty, s.end_offset
        FROM ({_segment_at("%(offset)s")}
        ) AS found
        CROSS JOIN LATERAL ({_segment("found.segment_id")}
        ) AS s
        UNION ALL
        SELECT s.segment_id, s.txn_idx_empty, s.end_offset
        FROM chain
        CROSS JOIN LATERAL (
            SELECT coalesce(({_PAST_THE_PASSABLE}
            ), chain.end_offset + 1) AS next_offset
            OFFSET 0
        ) AS after
        CROSS JOIN LATERAL ({_segment_at("after.next_offset")}
        ) AS found
        CROSS JOIN LATERAL ({_segment("found.segment_id")}
        ) AS s
        WHERE chain.txn_idx_empty AND chain.end_offset < {INT64_MAX}
    )
    SELECT t.name AS topic, p.revision, {SEGMENT}
    FROM {PARTITIONS}
    LEFT JOIN chain ON NOT chain.txn_idx_empty
    LEFT JOIN LATERAL ({_segment("chain.segment_id")}
    ) AS s ON true
    WHERE {_IS_KNOWN_PARTITION}"""

HIGHEST_OFFSET = f"""
    SELECT t.name AS topic, p.revision,
        (SELECT highest_offset FROM highest_offsets WHERE {_OF_EPOCH}) AS answer
    FROM {PARTITIONS}
    WHERE {_IS_KNOWN_PARTITION}"""

# A size of -1 is an unknown one.
LOG_SIZE = f"""
    SELECT t.name AS topic, p.revision, (
        SELECT coalesce(sum(greatest(s.segment_size_in_bytes, 0)), 0)::bigint
        FROM (SELECT segment_id FROM segment_epochs WHERE {_OF_EPOCH}) AS e
        CROSS JOIN LATERAL ({_segment("e.segment_id")}
        ) AS s
    ) AS answer
    FROM {PARTITIONS}
    WHERE {_IS_KNOWN_PARTITION}"""


def find_segment(
    transactions: Transactions, statement: str, tp: TopicIdPartition, leader_epoch: int, offset: int
) -> AtRevision[RemoteLogSegmentMetadata | None]:
    """Run SEGMENT_FOR_OFFSET or NEXT_WITH_TXN_INDEX."""
    row = _read(transactions, statement, tp, leader_epoch=leader_epoch, offset=offset)
    segment = None if row.segment_id is None else segment_from_row(row, tp)
    return AtRevision(segment, row.revision)


def highest_offset(
    transactions: Transactions, tp: TopicIdPartition, leader_epoch: int
) -> AtRevision[int | None]:
    row = _read(transactions, HIGHEST_OFFSET, tp, leader_epoch=leader_epoch)
    return AtRevision(row.answer, row.revision)


def log_size(
    transactions: Transactions, tp: TopicIdPartition, leader_epoch: int
) -> AtRevision[int]:
    row = _read(transactions, LOG_SIZE, tp, leader_epoch=leader_epoch)
    return AtRevision(row.answer, row.revision)


def _read(transactions: Transactions, statement: str, tp: TopicIdPartition, **of: int) -> AnyRow:
    keys: dict[str, UUID | int] = {"topic_id": tp.topic_id, "partition": tp.partition, **of}
    row: AnyRow | None = transactions.read_row(statement, keys)
    if row is None:
        raise unknown_partition(tp)
    check_topic_name(tp, row.topic)
    return row
