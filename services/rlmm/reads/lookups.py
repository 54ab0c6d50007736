"""Look up segments by offset and by id, highest offsets, sizes and revisions."""

import re
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from services.api.calls import AtRevision
from services.api.errors import RemoteStorageError, ThrottledError
from services.api.ids import TopicIdPartition
from services.api.segment_batches import LookupOutcome, SegmentLookup
from services.api.segments import RemoteLogSegmentMetadata
from services.rlmm.database.db import (
    IS_KNOWN,
    PARTITIONS,
    SEGMENT,
    JsonRow,
    Transactions,
    execute,
    key_of,
    key_values,
    partition_row,
    run,
    stream,
)
from services.rlmm.database.epoch_index import RANGE_CLASS, RANGE_CLASSES
from services.rlmm.database.limits import MAX_PAGE_BYTES, SEGMENT_BYTES
from services.rlmm.database.rows import (
    COPY_LEASED,
    SEGMENT_COLUMNS,
    AnyRow,
    kept_until_ms_of,
    segment_from_row,
)
from services.rlmm.database.tables import HAS_TXN_INDEX, IS_KEPT
from services.rlmm.guards import check_topic_name, unknown_partition


def _segment(segment_id: str) -> str:
    """Build SQL for the row of the segment with an id; LIMIT 1 as in _segment_at."""
    return f"""
        SELECT {", ".join(SEGMENT_COLUMNS)}, finished_revision FROM segments
        WHERE topic_id = %(topic_id)s AND partition = %(partition)s AND segment_id = {segment_id}
        LIMIT 1"""


_OF_EPOCH = """topic_id = %(topic_id)s AND partition = %(partition)s
                AND leader_epoch = %(leader_epoch)s"""

_IS_KNOWN_PARTITION = f"""
    p.topic_id = %(topic_id)s AND p.partition = %(partition)s AND {IS_KNOWN}"""


def _segment_at(offset: str, *, overlapped: bool = True) -> str:
    """Build SQL for the id of the segment that holds `offset`, an SQL expression.

    The result is one row, whose id is NULL if there is no segment, or no row.

    First comes Kafka's choice: of the referenced segments (those in Kafka's map), the last one that
    starts at or below the offset, if it holds the offset. Otherwise, if `overlapped`, one of the
    segments that overlapped when they finished and hold the offset: the higher broker leader epoch
    if both of two have one, else the later finish. In the order of finishing, a segment without an
    epoch beats all before it, so only the last such segment and those after it compete.

    No segment that starts more than longest_reach before the offset holds it. That bound keeps both
    searches from reading back through rows that were unpublished long ago and are not vacuumed yet.
    (OFFSET 0, and LIMIT 1 on a row found by its key, keep the planner from reversing the search:
    with no statistics yet it would read all of a partition's rows.)
    """
    others = f"""(
            WITH candidate AS MATERIALIZED (
                SELECT e.segment_id, s.broker_leader_epoch, s.finished_revision
                FROM {RANGE_CLASSES} AS range (digits, longest)
                CROSS JOIN LATERAL (
                    SELECT segment_id FROM segment_epochs
                    WHERE {_OF_EPOCH} AND overlapped AND {RANGE_CLASS} = range.digits
                        AND start_offset BETWEEN {offset} - range.longest AND {offset}
                        AND end_offset >= {offset}
                    OFFSET 0
                ) AS e
                CROSS JOIN LATERAL ({_segment("e.segment_id")}
                ) AS s
                WHERE range.digits <= length(CAST(greatest(epoch.longest_reach, 0) AS text))
            )
            SELECT segment_id FROM candidate WHERE finished_revision = (
                SELECT (max(ARRAY[coalesce(broker_leader_epoch, -1), finished_revision]))[2]
                FROM candidate WHERE finished_revision >= (
                    SELECT coalesce(max(finished_revision), 0)
                    FROM candidate WHERE broker_leader_epoch IS NULL))
            LIMIT 1
        )"""
    found = f"coalesce(floor.segment_id, {others})" if overlapped else "floor.segment_id"
    return f"""
        SELECT {found} AS segment_id
        FROM highest_offsets AS epoch
        LEFT JOIN LATERAL (
            SELECT segment_id, end_offset FROM segment_epochs
            WHERE {_OF_EPOCH} AND referenced
                AND start_offset BETWEEN {offset} - greatest(epoch.longest_reach, 0) AND {offset}
            ORDER BY start_offset DESC LIMIT 1
        ) AS floor ON floor.end_offset >= {offset}
        WHERE {_OF_EPOCH}"""


SEGMENT_AT = _segment_at("%(offset)s")
"""SQL for an id; columns may replace its four parameters."""


def _found(search: str) -> str:
    return f"""
    SELECT t.name AS topic, p.revision, {SEGMENT}
    FROM {PARTITIONS}
    LEFT JOIN LATERAL ({search}
    ) AS found ON true
    LEFT JOIN LATERAL ({_segment("found.segment_id")}
    ) AS s ON true
    WHERE {_IS_KNOWN_PARTITION}"""


SEGMENT_FOR_OFFSET = _found(SEGMENT_AT)
REFERENCED_FOR_OFFSET = _found(_segment_at("%(offset)s", overlapped=False))

# The segment with a transaction index that ends at or after the offset and starts first. Unlike
# Kafka's search, which continues from segment to segment, this search does not stop at a gap: a
# reader gets the aborted transactions of more segments than it needs, which is harmless. No segment
# of Kafka's result is missed: the returned segment either ends before it, or holds all its offsets.
_PLACE = "array_position(leader_epochs, %(leader_epoch)s)"
# An epoch that has no records in a segment may be in its list: the next one starts at its start.
_HAS_RECORDS_OF_EPOCH = f"""epoch_start_offsets[{_PLACE}]
                    < coalesce(epoch_start_offsets[{_PLACE} + 1], end_offset + 1)"""

NEXT_WITH_TXN_INDEX = f"""
    SELECT t.name AS topic, p.revision, {SEGMENT}
    FROM {PARTITIONS}
    LEFT JOIN LATERAL (
        SELECT found.*
        FROM highest_offsets AS epoch
        CROSS JOIN {RANGE_CLASSES} AS range (digits, longest)
        CROSS JOIN LATERAL (
            SELECT {", ".join(SEGMENT_COLUMNS)} FROM segments
            WHERE topic_id = %(topic_id)s AND partition = %(partition)s
                AND {HAS_TXN_INDEX} AND {RANGE_CLASS} = range.digits
                AND start_offset BETWEEN %(offset)s - range.longest AND epoch.highest_offset
                AND end_offset >= %(offset)s AND {_HAS_RECORDS_OF_EPOCH}
            ORDER BY start_offset, segment_id LIMIT 1
        ) AS found
        WHERE {_OF_EPOCH}
        ORDER BY found.start_offset, found.segment_id LIMIT 1
    ) AS s ON true
    WHERE {_IS_KNOWN_PARTITION}"""

HIGHEST_OFFSET = f"""
    SELECT t.name AS topic, p.revision,
        (SELECT highest_offset FROM highest_offsets WHERE {_OF_EPOCH}) AS answer
    FROM {PARTITIONS}
    WHERE {_IS_KNOWN_PARTITION}"""

# A size of -1 means an unknown size.
LOG_SIZE = f"""
    SELECT t.name AS topic, p.revision, (
        SELECT coalesce(sum(greatest(s.segment_size_in_bytes, 0)), 0)::bigint
        FROM (SELECT segment_id FROM segment_epochs WHERE {_OF_EPOCH}) AS e
        CROSS JOIN LATERAL ({_segment("e.segment_id")}
        ) AS s
    ) AS answer
    FROM {PARTITIONS}
    WHERE {_IS_KNOWN_PARTITION}"""


def segment_for_offset(
    transactions: Transactions, tp: TopicIdPartition, leader_epoch: int, offset: int
) -> AtRevision[RemoteLogSegmentMetadata | None]:
    """Look up a segment; see RemoteLogMetadataManager.remote_log_segment_metadata."""
    # Nearly always Kafka's choice holds the offset. PostgreSQL prepares the search for others even
    # if it does not run it: 45 us of its CPU time instead of 32.
    found = find_segment(transactions, REFERENCED_FOR_OFFSET, tp, leader_epoch, offset)
    if found.value is None:
        found = find_segment(transactions, SEGMENT_FOR_OFFSET, tp, leader_epoch, offset)
    return found


def find_segment(
    transactions: Transactions, statement: str, tp: TopicIdPartition, leader_epoch: int, offset: int
) -> AtRevision[RemoteLogSegmentMetadata | None]:
    """Run REFERENCED_FOR_OFFSET, SEGMENT_FOR_OFFSET or NEXT_WITH_TXN_INDEX."""
    row = _read(transactions, statement, tp, leader_epoch=leader_epoch, offset=offset)
    segment = None if row.segment_id is None else segment_from_row(row, tp)
    return AtRevision(segment, row.revision)


def answer_of_epoch(
    transactions: Transactions, statement: str, tp: TopicIdPartition, leader_epoch: int
) -> AtRevision[Any]:
    """Run HIGHEST_OFFSET or LOG_SIZE."""
    row = _read(transactions, statement, tp, leader_epoch=leader_epoch)
    return AtRevision(row.answer, row.revision)


def _read(transactions: Transactions, statement: str, tp: TopicIdPartition, **of: int) -> AnyRow:
    row: AnyRow | None = transactions.read_row(statement, {**key_values(key_of(tp)), **of})
    if row is None:
        raise unknown_partition(tp)
    check_topic_name(tp, row.topic)
    return row


_SEGMENT_AT_EACH = re.sub(r"%\((\w+)\)s", r"wanted.\1", SEGMENT_AT)

_IF_IT_FITS = ", ".join(
    f"CASE WHEN bytes <= {MAX_PAGE_BYTES} THEN {name} END AS {name}" for name in SEGMENT_COLUMNS
)

ROWS_AT_A_TIME = 50

# Rows are found by their keys, with LIMIT 1, so that no plan reads a whole table. Nothing sorts: a
# row is returned when it is found, so the first of those that do not fit together is the last in
# order of their places only as long as nested loops keep the order; any order gives correct
# results.
SEGMENTS_FOR_OFFSETS = f"""
    SELECT place, topic, revision,
        segment_id IS NOT NULL AND bytes > {MAX_PAGE_BYTES} AS is_left_out, {_IF_IT_FITS}
    FROM (
        SELECT wanted.place, p.topic, p.revision, {SEGMENT},
            sum({SEGMENT_BYTES}) OVER (ROWS UNBOUNDED PRECEDING) AS bytes
        FROM json_to_recordset(%(rows)s) AS wanted (
            place int, topic_id uuid, partition int, leader_epoch int, "offset" bigint)
        CROSS JOIN LATERAL (
            SELECT t.name AS topic, p.revision
            FROM {PARTITIONS}
            WHERE p.topic_id = wanted.topic_id AND p.partition = wanted.partition AND {IS_KNOWN}
            LIMIT 1
        ) AS p
        LEFT JOIN LATERAL ({_SEGMENT_AT_EACH}
            LIMIT 1
        ) AS found ON true
        LEFT JOIN LATERAL (
            SELECT {SEGMENT} FROM segments AS s
            WHERE s.topic_id = wanted.topic_id AND s.partition = wanted.partition
                AND s.segment_id = found.segment_id
            LIMIT 1
        ) AS s ON true
    ) AS found"""


def find_segments(
    connection: Connection, lookups: Sequence[SegmentLookup]
) -> Iterator[LookupOutcome]:
    """Look up segments; see RemoteLogMetadataManager.remote_log_segment_metadata_batch."""
    wanted = [_wanted(place, lookup) for place, lookup in enumerate(lookups)]
    outcomes: dict[int, LookupOutcome] = {}
    present = 0
    # Rows are read while the database looks up the next ones: both take about as long.
    for row in stream(connection, SEGMENTS_FOR_OFFSETS, wanted, ROWS_AT_A_TIME):
        outcomes[row.place] = _outcome(row, lookups[row.place].topic_id_partition)
        while present in outcomes:
            yield outcomes.pop(present)
            present += 1
    for place in range(present, len(lookups)):
        yield outcomes.get(place) or unknown_partition(lookups[place].topic_id_partition)


def _wanted(place: int, lookup: SegmentLookup) -> JsonRow:
    return {
        **partition_row(key_of(lookup.topic_id_partition)),
        "place": place,
        "leader_epoch": lookup.epoch_for_offset,
        "offset": lookup.offset,
    }


def _outcome(row: AnyRow, tp: TopicIdPartition) -> LookupOutcome:
    try:
        check_topic_name(tp, row.topic)
    except RemoteStorageError as e:
        return e
    if row.is_left_out:
        return ThrottledError(
            "the segments before this one fill the answer; look this one up again"
        )
    segment = None if row.segment_id is None else segment_from_row(row, tp)
    return AtRevision(segment, row.revision)


# As many segments as a message holds, at least one.
BY_ID = f"""
    SELECT * FROM (
        SELECT t.name AS topic, p.revision, {SEGMENT}, s.kept_until, {COPY_LEASED} AS copy_leased,
            row_number() OVER in_order AS number, sum({SEGMENT_BYTES}) OVER in_order AS bytes
        FROM {PARTITIONS}
        LEFT JOIN segments AS s ON s.topic_id = p.topic_id AND s.partition = p.partition
            AND s.segment_id = ANY(CAST(%(ids)s AS uuid[]))
        WHERE p.topic_id = %(topic_id)s AND p.partition = %(partition)s
            AND ({IS_KNOWN} OR {IS_KEPT})
        WINDOW in_order AS (ORDER BY s.start_offset, s.segment_id ROWS UNBOUNDED PRECEDING)
    ) AS found
    WHERE number = 1 OR bytes <= {MAX_PAGE_BYTES}
    ORDER BY number"""

_OF_PARTITION = """s.topic_id = p.topic_id AND s.partition = p.partition
                AND s.state = 'COPY_SEGMENT_FINISHED' AND s.state <> 'DELETE_SEGMENT_FINISHED'"""

# The first segment either holds the log start or is the first that begins after it. (state <> ...
# is implied, and shows the planner that it may use the index on live segments.)
EARLIEST = f"""
    SELECT t.name AS topic, p.revision, coalesce(
        (SELECT p.log_start_offset
            FROM {RANGE_CLASSES} AS range (digits, longest)
            CROSS JOIN LATERAL (
                SELECT FROM segments AS s
                WHERE {_OF_PARTITION} AND {RANGE_CLASS} = range.digits
                    AND s.start_offset BETWEEN p.log_start_offset - range.longest
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

# Rows are found by LATERAL subqueries, as in batch.py: a join without statistics reads all rows of
# a topic for each of its partitions, which takes a second for 10,000.
REVISIONS = f"""
    SELECT wanted.place, found.revision,
        (SELECT name FROM topics WHERE topic_id = wanted.topic_id) AS topic
    FROM json_to_recordset(%(rows)s) AS wanted (place int, topic_id uuid, partition int)
    CROSS JOIN LATERAL (
        SELECT p.revision FROM partitions AS p
        WHERE p.topic_id = wanted.topic_id AND p.partition = wanted.partition AND {IS_KNOWN}
        LIMIT 1
    ) AS found"""


def segments_by_id(
    connection: Connection, tp: TopicIdPartition, ids: Sequence[UUID]
) -> AtRevision[tuple[RemoteLogSegmentMetadata, ...]]:
    """Read segments; see RemoteLogMetadataManager.remote_log_segment_metadata_by_id."""
    rows = execute(connection, BY_ID, {**key_values(key_of(tp)), "ids": list(ids)}).fetchall()
    if not rows:
        raise unknown_partition(tp)
    check_topic_name(tp, rows[0].topic)
    segments = tuple(
        segment_from_row(row, tp, copy_leased=row.copy_leased, kept_until_ms=kept_until_ms_of(row))
        for row in rows
        if row.segment_id is not None
    )
    return AtRevision(segments, rows[0].revision)


def earliest_offset(connection: Connection, tp: TopicIdPartition) -> AtRevision[int | None]:
    """Read the earliest offset; see RemoteLogMetadataManager.earliest_log_offset."""
    row = execute(connection, EARLIEST, key_values(key_of(tp))).fetchone()
    if row is None:
        raise unknown_partition(tp)
    check_topic_name(tp, row.topic)
    return AtRevision(row.earliest_offset, row.revision)


def revisions(
    connection: Connection, tps: Sequence[TopicIdPartition], field: str = "topic"
) -> list[int]:
    """Read revisions; see RemoteLogMetadataManager.partition_revisions.

    Args:
        field: the path of the topic's name in an item of `partitions`, for messages.
    """
    wanted: list[JsonRow] = [
        {**partition_row(key_of(tp)), "place": place} for place, tp in enumerate(tps)
    ]
    present = [0] * len(tps)
    for row in run(connection, REVISIONS, wanted):
        check_topic_name(tps[row.place], row.topic, f"partitions[{row.place}].{field}")
        present[row.place] = row.revision
    return present
