"""Maintain the index from offsets to finished segments, by Kafka's rules for leader epochs.

What for. Kafka's RemoteLogMetadataCache has, for each leader epoch, a map from start offset to
segment; a look-up takes the entry at or below the offset. The table segment_epochs is this map for
all partitions: a row for each segment and each of its epochs. Look-ups stay statements of one index
read, whatever the number of segments.

How to use. `add` when a copy begins, `publish` when it finishes (of a partition one segment at a
time, or several that each begin above all that finished before, as imports bring them), `unpublish`
when its deletion starts, `delete` when it is over. All within the caller's transaction, with the
partition's lock held.

Invariants.
* A row is `referenced` if it is in Kafka's map: its segment is finished, and no later one has taken
  its start offset or, reaching the epoch's end, all from there on.
* A row is `overlapped` if it shared offsets with another one when either finished. Look-ups read
  more than one row only where some row of the epoch is overlapped.
* highest_offsets has the highest end of all that ever finished in an epoch, which never falls, and
  the longest row: no row that begins further below an offset than that can hold it.
* Statements read what they change by ctid and in the order of one index. No other transaction
  changes these rows while the partition is locked.

Cancellation and crash. The statements are part of a transaction: all of them apply or none. A dead
database is the transaction's error; nothing is cached here.
"""

from collections.abc import Collection, Iterable

from sqlalchemy import Connection

from services.api.ids import RemoteLogSegmentId
from services.api.segments import RemoteLogSegmentMetadata
from services.api.validation import INT64_MAX
from services.rlmm.database.db import JsonRow, run, segment_row

_INSERT = """
    INSERT INTO segment_epochs (
        topic_id, partition, segment_id, leader_epoch, segment_start_offset, start_offset,
        end_offset, referenced, overlapped)
    SELECT added.*, false, false
    FROM json_to_recordset(%(rows)s) AS added (
        topic_id uuid, partition int, segment_id uuid, leader_epoch int,
        segment_start_offset bigint, start_offset bigint, end_offset bigint)"""


def _rows(segments: Iterable[RemoteLogSegmentMetadata]) -> list[JsonRow]:
    """Return a row of segment_epochs for each epoch of each segment."""
    return [
        {
            **segment_row(segment.remote_log_segment_id),
            "leader_epoch": epoch,
            "segment_start_offset": segment.start_offset,
            "start_offset": start,
            "end_offset": end,
        }
        for segment in segments
        for epoch, start, end in segment.epoch_ranges()
    ]


RANGE_CLASS = "length((end_offset - start_offset)::text)"
"""SQL for a row's class of lengths; an index uses it, so it is written as PostgreSQL prints it."""

_LONGEST_RANGES = [(digits, min(10**digits - 1, INT64_MAX)) for digits in range(1, 20)]

RANGE_CLASSES = "(VALUES " + ", ".join(f"({d}, {longest})" for d, longest in _LONGEST_RANGES) + ")"
"""SQL for all classes: the digits of `end_offset - start_offset`, and its maximum."""

# The ranges of the finishing segments, and the segments that had finished in their epochs. (Here
# and below, rows are found by LATERAL subqueries that the planner cannot take apart, and written by
# ctid: the planner knows too little of the keys to join by them. No other transaction changes these
# rows while the partition is locked. Without statistics the planner rates every index alike, even
# one that reads a whole epoch: ORDER BY selects the right one.)
_OWN = """
    SELECT own.*, h.highest_offset, h.longest_reach
    FROM json_to_recordset(%(rows)s) AS finishing (topic_id uuid, partition int, segment_id uuid)
    CROSS JOIN LATERAL (
        SELECT ctid AS own_ctid, segment_epochs.* FROM segment_epochs
        WHERE topic_id = finishing.topic_id AND partition = finishing.partition
            AND segment_id = finishing.segment_id
        ORDER BY leader_epoch OFFSET 0
    ) AS own
    LEFT JOIN LATERAL (
        SELECT highest_offset, greatest(longest_reach, 0) AS longest_reach FROM highest_offsets
        WHERE topic_id = own.topic_id AND partition = own.partition
            AND leader_epoch = own.leader_epoch
        LIMIT 1
    ) AS h ON true"""

_IN_ITS_EPOCH = """topic_id = own.topic_id AND partition = own.partition
                AND leader_epoch = own.leader_epoch"""

# Flag neighbours that share offsets; Kafka's map removes some of these and of others. An epoch
# without offsets shares none, and yet replaces a row with an equal start. No row that starts before
# first_start holds offsets of `own`: this bounds the rows that are read.
_DISPLACE = f"""
    UPDATE segment_epochs AS e SET overlapped = true, referenced = NOT near.is_displaced
    FROM (
        SELECT near.*
        FROM (
            SELECT own.*,
                CASE WHEN highest_offset < start_offset THEN start_offset
                    ELSE start_offset - longest_reach END AS first_start,
                CASE WHEN highest_offset <= end_offset THEN {INT64_MAX}
                    ELSE start_offset END AS last_displaced
            FROM ({_OWN}
            ) AS own
        ) AS own
        CROSS JOIN LATERAL (
            SELECT ctid AS near_ctid,
                start_offset BETWEEN own.start_offset AND own.last_displaced AS is_displaced
            FROM segment_epochs
            WHERE {_IN_ITS_EPOCH} AND referenced
                AND start_offset BETWEEN own.first_start
                    AND greatest(own.end_offset, own.last_displaced)
                AND (start_offset BETWEEN own.start_offset AND own.last_displaced
                    OR NOT overlapped AND start_offset <= own.end_offset
                        AND end_offset >= own.start_offset)
            ORDER BY start_offset OFFSET 0
        ) AS near
    ) AS near
    WHERE e.ctid = near.near_ctid"""

_REFERENCE = f"""
    UPDATE segment_epochs AS e SET referenced = true, overlapped = own.is_overlapped
    FROM (
        SELECT own_ctid,
            coalesce(highest_offset >= start_offset, false) AND EXISTS (
                SELECT FROM segment_epochs
                WHERE {_IN_ITS_EPOCH} AND overlapped
                    AND start_offset BETWEEN own.start_offset - own.longest_reach
                        AND own.end_offset
                    AND end_offset >= own.start_offset
            ) AS is_overlapped
        FROM ({_OWN}
        ) AS own
    ) AS own
    WHERE e.ctid = own.own_ctid"""

_RAISE_HIGHEST_OFFSETS = f"""
    INSERT INTO highest_offsets AS h (
        topic_id, partition, leader_epoch, highest_offset, longest_reach)
    SELECT topic_id, partition, leader_epoch, max(end_offset), max(end_offset - start_offset)
    FROM ({_OWN}) AS own
    GROUP BY topic_id, partition, leader_epoch
    ON CONFLICT (topic_id, partition, leader_epoch) DO UPDATE SET
        highest_offset = greatest(h.highest_offset, excluded.highest_offset),
        longest_reach = greatest(h.longest_reach, excluded.longest_reach)"""

PUBLISH = (_DISPLACE, _REFERENCE, _RAISE_HIGHEST_OFFSETS)

_KEYS = """ARRAY(
        SELECT e.ctid
        FROM json_to_recordset(%(rows)s) AS key (topic_id uuid, partition int, segment_id uuid)
        CROSS JOIN LATERAL (
            SELECT ctid FROM segment_epochs
            WHERE topic_id = key.topic_id AND partition = key.partition
                AND segment_id = key.segment_id
            ORDER BY leader_epoch OFFSET 0
        ) AS e)"""

UNPUBLISH = f"""
    UPDATE segment_epochs SET referenced = false, overlapped = false WHERE ctid = ANY({_KEYS})"""

DELETE = f"DELETE FROM segment_epochs WHERE ctid = ANY({_KEYS})"


def add(connection: Connection, segments: Iterable[RemoteLogSegmentMetadata]) -> None:
    """Add segments whose copies begin: lists by epoch show them, look-ups do not."""
    run(connection, _INSERT, _rows(segments))


def publish(connection: Connection, segment_ids: Collection[RemoteLogSegmentId]) -> None:
    """Publish finishing segments to look-ups: of a partition one, or several that are appended.

    Appended ones have offsets in each of their epochs, above all that finished there before them.
    The order of the statements matters: neighbours are flagged while they are still referenced, and
    all statements read the highest offset before it rises.
    """
    rows = [segment_row(segment_id) for segment_id in segment_ids]
    for statement in PUBLISH:
        run(connection, statement, rows)


def unpublish(connection: Connection, segment_ids: Collection[RemoteLogSegmentId]) -> None:
    """Hide segments from look-ups when their deletion starts."""
    run(connection, UNPUBLISH, [segment_row(segment_id) for segment_id in segment_ids])


def delete(connection: Connection, segment_ids: Collection[RemoteLogSegmentId]) -> None:
    """Remove deleted segments from lists by epoch."""
    run(connection, DELETE, [segment_row(segment_id) for segment_id in segment_ids])
