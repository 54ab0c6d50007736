"""Find the finished segments that have all records of another one."""

from collections.abc import Iterable
from uuid import UUID

from sqlalchemy import Connection

from services.api.ids import TopicIdPartition
from services.api.superseded import covers
from services.rlmm.database.db import PartitionKey, execute, key_values, wait_for_answers
from services.rlmm.database.epoch_index import RANGE_CLASS, RANGE_CLASSES
from services.rlmm.database.rows import AnyRow, segment_from_row

# (state <> ... is implied, and shows the planner that it may use the index on live segments.)
_AROUND = f"""
    SELECT s.*, false AS copy_leased
    FROM {RANGE_CLASSES} AS range (digits, longest)
    CROSS JOIN LATERAL (
        SELECT * FROM segments
        WHERE topic_id = %(topic_id)s AND partition = %(partition)s
            AND state = 'COPY_SEGMENT_FINISHED' AND state <> 'DELETE_SEGMENT_FINISHED'
            AND {RANGE_CLASS} = range.digits
            AND start_offset BETWEEN %(start)s - range.longest AND %(start)s
            AND end_offset >= %(end)s
    ) AS s
    WHERE s.segment_id <> %(segment_id)s"""


def better_copies(connection: Connection, key: PartitionKey, stored: AnyRow) -> Iterable[UUID]:
    """Return the ids of the finished segments with every offset of `stored`, by leader epoch.

    The partition is locked, so that none of them is marked meanwhile but by this transaction.
    """
    values = {
        **key_values(key),
        "start": stored.start_offset,
        "end": stored.end_offset,
        "segment_id": stored.segment_id,
    }
    rows = execute(connection, _AROUND, values)
    wait_for_answers(connection)
    tp = TopicIdPartition(stored.topic_id, "any", stored.partition)
    worse = segment_from_row(stored, tp)
    return [row.segment_id for row in rows if covers(segment_from_row(row, tp), worse)]
