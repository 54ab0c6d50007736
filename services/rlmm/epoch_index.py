"""Maintain which finished segment answers for an offset: Kafka's rules, as sets."""

from collections.abc import Collection, Iterable, Iterator, Sequence

from sqlalchemy.orm import Session

from services.api.ids import RemoteLogSegmentId
from services.api.segments import RemoteLogSegmentMetadata
from services.api.validation import INT64_MAX
from services.rlmm.db import JsonRow, key_of, partition_row, run, segment_row

# The first offset that comes in each epoch.
_FIRST = """json_to_recordset(%(rows)s) AS first (
        topic_id uuid, partition int, leader_epoch int, start_offset bigint)"""

_IN_EPOCH_OF_FIRST = """topic_id = first.topic_id AND partition = first.partition
                AND leader_epoch = first.leader_epoch"""

_DISPLACE_APPENDED = f"""
    UPDATE segment_epochs SET overlapped = true, referenced = false
    WHERE ctid = ANY(ARRAY(
        SELECT displaced.ctid
        FROM {_FIRST}
        CROSS JOIN LATERAL (
            SELECT ctid FROM segment_epochs
            WHERE {_IN_EPOCH_OF_FIRST} AND referenced AND start_offset >= first.start_offset
            ORDER BY start_offset LIMIT 1
        ) AS displaced))"""

_LAST_BEFORE = f"""
    SELECT first.leader_epoch, before.end_offset
    FROM {_FIRST}
    CROSS JOIN LATERAL (
        SELECT end_offset FROM segment_epochs
        WHERE {_IN_EPOCH_OF_FIRST} AND referenced AND start_offset < first.start_offset
        ORDER BY start_offset DESC LIMIT 1
    ) AS before"""

_ADD = """
    INSERT INTO segment_epochs (
        topic_id, partition, segment_id, leader_epoch, segment_start_offset, start_offset,
        end_offset, passable, referenced, overlapped)
    SELECT added.*, true, false
    FROM json_to_recordset(%(rows)s) AS added (
        topic_id uuid, partition int, segment_id uuid, leader_epoch int,
        segment_start_offset bigint, start_offset bigint, end_offset bigint, passable boolean)"""

_RAISE_APPENDED_OFFSETS = """
    INSERT INTO highest_offsets AS h (
        topic_id, partition, leader_epoch, highest_offset, longest_reach)
    SELECT topic_id, partition, leader_epoch, max(end_offset), max(end_offset - start_offset)
    FROM json_to_recordset(%(rows)s) AS added (
        topic_id uuid, partition int, leader_epoch int, start_offset bigint, end_offset bigint)
    GROUP BY topic_id, partition, leader_epoch
    ON CONFLICT (topic_id, partition, leader_epoch) DO UPDATE SET
        highest_offset = greatest(h.highest_offset, excluded.highest_offset),
        longest_reach = greatest(h.longest_reach, excluded.longest_reach)"""


def show_appended(session: Session, segments: Sequence[RemoteLogSegmentMetadata]) -> None:
    """visibility.note_copies_started and visibility.show of each, in their order.

    All are of one partition. In each of its epochs each has offsets, and they begin above all that
    finished there before it.
    """
    connection = session.connection()
    firsts = list(_first_of_each_epoch(segments))
    run(connection, _DISPLACE_APPENDED, firsts)
    last_ends = {row.leader_epoch: row.end_offset for row in run(connection, _LAST_BEFORE, firsts)}
    rows = list(_rows(segments, last_ends))
    for statement in (_ADD, _RAISE_APPENDED_OFFSETS):
        run(connection, statement, rows)


def _first_of_each_epoch(segments: Sequence[RemoteLogSegmentMetadata]) -> Iterator[JsonRow]:
    seen: set[int] = set()
    for segment in segments:
        for epoch, start, _ in segment.epoch_ranges():
            if epoch not in seen:
                seen.add(epoch)
                key = partition_row(key_of(segment.topic_id_partition))
                yield {**key, "leader_epoch": epoch, "start_offset": start}


def _rows(
    segments: Sequence[RemoteLogSegmentMetadata], last_ends: dict[int, int]
) -> Iterator[JsonRow]:
    """Of segment_epochs.

    Args:
        last_ends: by leader epoch, where what is referenced before the first segment ends.
    """
    last_ends = dict(last_ends)
    for segment in segments:
        for epoch, start, end in segment.epoch_ranges():
            goes_on = last_ends.get(epoch) == start - 1
            last_ends[epoch] = end
            yield {
                **segment_row(segment.remote_log_segment_id),
                "leader_epoch": epoch,
                "segment_start_offset": segment.start_offset,
                "start_offset": start,
                "end_offset": end,
                "passable": segment.txn_idx_empty and goes_on and end == segment.end_offset,
            }


REACH_DIGITS = "length((end_offset - start_offset)::text)"
"""SQL for the class of a row with start_offset and end_offset; in an index, so it
stands as PostgreSQL prints it."""

_LONGEST_REACHES = [(digits, min(10**digits - 1, INT64_MAX)) for digits in range(1, 20)]

REACH_CLASSES = "(VALUES " + ", ".join(f"({d}, {longest})" for d, longest in _LONGEST_REACHES) + ")"
"""SQL for all classes that there can be: digits, the longest reach of so many digits."""


def _after(ranges: str) -> str:
    """SQL for the offset after a range. As both ends of one, it leaves ORDER BY something to say,
    which an equality would not."""
    return f"(least({ranges}.end_offset, {INT64_MAX - 1}) + 1)"


# What finishes, at most one segment of each partition: its ranges, and what has finished in their
# epochs before. (Here and below, rows are found by LATERAL subqueries that the planner cannot take
# apart, and written by ctid: it knows too little of the keys to join by them. Nobody else changes
# these rows while the partition is locked. Without statistics every index looks as good to it, also
# one that reads a whole epoch: ORDER BY tells it which one.)
_OWN = """
    SELECT own.*, s.segment_end_offset, s.txn_idx_empty, h.highest_offset, h.longest_reach
    FROM json_to_recordset(%(rows)s) AS finishing (topic_id uuid, partition int, segment_id uuid)
    CROSS JOIN LATERAL (
        SELECT ctid AS own_ctid, segment_epochs.* FROM segment_epochs
        WHERE topic_id = finishing.topic_id AND partition = finishing.partition
            AND segment_id = finishing.segment_id
        ORDER BY leader_epoch OFFSET 0
    ) AS own
    CROSS JOIN LATERAL (
        SELECT end_offset AS segment_end_offset, txn_idx_empty FROM segments
        WHERE topic_id = own.topic_id AND partition = own.partition
            AND segment_id = own.segment_id
        LIMIT 1
    ) AS s
    LEFT JOIN LATERAL (
        SELECT highest_offset, greatest(longest_reach, 0) AS longest_reach FROM highest_offsets
        WHERE topic_id = own.topic_id AND partition = own.partition
            AND leader_epoch = own.leader_epoch
        LIMIT 1
    ) AS h ON true"""

_IN_ITS_EPOCH = """topic_id = own.topic_id AND partition = own.partition
                AND leader_epoch = own.leader_epoch"""

# Neighbours that share offsets are flagged, and of these and others Kafka's map forgets some.
# An epoch without offsets shares none, and yet replaces its equal start.
# Nothing that starts before first_start reaches `own`: no rule, but a limit of what is read.
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

# What starts right after a segment that finishes later than it may be passed over now.
_MAKE_NEXT_PASSABLE = f"""
    UPDATE segment_epochs SET passable = true
    WHERE ctid = ANY(ARRAY(
        SELECT next.next_ctid
        FROM ({_OWN}
        ) AS own
        CROSS JOIN LATERAL (
            SELECT ctid AS next_ctid, segment_id, end_offset FROM segment_epochs
            WHERE {_IN_ITS_EPOCH} AND referenced AND NOT passable
                AND start_offset BETWEEN {_after("own")} AND {_after("own")}
                AND start_offset <= end_offset
            ORDER BY start_offset LIMIT 1
        ) AS next
        CROSS JOIN LATERAL (
            SELECT end_offset, txn_idx_empty FROM segments
            WHERE topic_id = own.topic_id AND partition = own.partition
                AND segment_id = next.segment_id
            LIMIT 1
        ) AS s
        WHERE own.end_offset = own.segment_end_offset AND own.end_offset < own.highest_offset
            AND s.end_offset = next.end_offset AND s.txn_idx_empty))"""

_REFERENCE = f"""
    UPDATE segment_epochs AS e SET
        referenced = true, overlapped = own.is_overlapped, passable = own.is_passable
    FROM (
        SELECT own_ctid,
            coalesce(highest_offset >= start_offset, false) AND EXISTS (
                SELECT FROM segment_epochs
                WHERE {_IN_ITS_EPOCH} AND overlapped
                    AND start_offset BETWEEN own.start_offset - own.longest_reach
                        AND own.end_offset
                    AND end_offset >= own.start_offset
            ) AS is_overlapped,
            txn_idx_empty AND end_offset = segment_end_offset AND start_offset <= end_offset
                AND coalesce(start_offset - 1 = (
                    SELECT end_offset FROM segment_epochs
                    WHERE {_IN_ITS_EPOCH} AND referenced AND start_offset < own.start_offset
                    ORDER BY start_offset DESC LIMIT 1
                ), false) AS is_passable
        FROM ({_OWN}
        ) AS own
    ) AS own
    WHERE e.ctid = own.own_ctid"""

_RAISE_HIGHEST_OFFSETS = f"""
    INSERT INTO highest_offsets AS h (
        topic_id, partition, leader_epoch, highest_offset, longest_reach)
    SELECT topic_id, partition, leader_epoch, end_offset, end_offset - start_offset
    FROM ({_OWN}) AS own
    ON CONFLICT (topic_id, partition, leader_epoch) DO UPDATE SET
        highest_offset = greatest(h.highest_offset, excluded.highest_offset),
        longest_reach = greatest(h.longest_reach, excluded.longest_reach)"""

SHOW = (_DISPLACE, _MAKE_NEXT_PASSABLE, _REFERENCE, _RAISE_HIGHEST_OFFSETS)

# What starts right after what is to be hidden starts after a gap. Not where it is to be hidden too,
# so that no row is written twice.
_MAKE_NEXT_IMPASSABLE = f"""
    WITH key AS MATERIALIZED (
        SELECT * FROM json_to_recordset(%(rows)s) AS key (
            topic_id uuid, partition int, segment_id uuid)
    )
    UPDATE segment_epochs SET passable = false
    WHERE ctid = ANY(ARRAY(
        SELECT next.ctid
        FROM key
        CROSS JOIN LATERAL (
            SELECT leader_epoch, end_offset FROM segment_epochs
            WHERE topic_id = key.topic_id AND partition = key.partition
                AND segment_id = key.segment_id AND (referenced OR overlapped)
            ORDER BY leader_epoch OFFSET 0
        ) AS hidden
        CROSS JOIN LATERAL (
            SELECT ctid, segment_id FROM segment_epochs
            WHERE topic_id = key.topic_id AND partition = key.partition
                AND leader_epoch = hidden.leader_epoch AND referenced AND passable
                AND start_offset BETWEEN {_after("hidden")} AND {_after("hidden")}
            ORDER BY start_offset LIMIT 1
        ) AS next
        WHERE (key.topic_id, key.partition, next.segment_id) NOT IN (SELECT * FROM key)))"""

_KEYS = """ARRAY(
        SELECT e.ctid
        FROM json_to_recordset(%(rows)s) AS key (topic_id uuid, partition int, segment_id uuid)
        CROSS JOIN LATERAL (
            SELECT ctid FROM segment_epochs
            WHERE topic_id = key.topic_id AND partition = key.partition
                AND segment_id = key.segment_id
            ORDER BY leader_epoch OFFSET 0
        ) AS e)"""

_UNREFERENCE = f"""
    UPDATE segment_epochs SET referenced = false, overlapped = false WHERE ctid = ANY({_KEYS})"""

HIDE = (_MAKE_NEXT_IMPASSABLE, _UNREFERENCE)
FORGET = f"DELETE FROM segment_epochs WHERE ctid = ANY({_KEYS})"

_NOTE = """
    INSERT INTO segment_epochs (
        topic_id, partition, segment_id, leader_epoch, segment_start_offset, start_offset,
        end_offset, referenced, overlapped)
    SELECT noted.*, false, false
    FROM json_to_recordset(%(rows)s) AS noted (
        topic_id uuid, partition int, segment_id uuid, leader_epoch int,
        segment_start_offset bigint, start_offset bigint, end_offset bigint)"""


def note_copies_started(session: Session, segments: Iterable[RemoteLogSegmentMetadata]) -> None:
    """Lists by epoch show the segments; look-ups do not."""
    rows = [
        {
            **segment_row(metadata.remote_log_segment_id),
            "leader_epoch": epoch,
            "segment_start_offset": metadata.start_offset,
            "start_offset": start,
            "end_offset": end,
        }
        for metadata in segments
        for epoch, start, end in metadata.epoch_ranges()
    ]
    run(session.connection(), _NOTE, rows)


def show(session: Session, segment_ids: Collection[RemoteLogSegmentId]) -> None:
    """The segments, each of another partition, finished: look-ups may find them from now on.

    The order matters: neighbours are flagged while they are still referenced, and all look at the
    highest offset before it rises.
    """
    rows = [segment_row(segment_id) for segment_id in segment_ids]
    for statement in SHOW:
        run(session.connection(), statement, rows)


def hide(session: Session, segment_ids: Collection[RemoteLogSegmentId]) -> None:
    """The segments' deletion started: look-ups no longer find them."""
    rows = [segment_row(segment_id) for segment_id in segment_ids]
    for statement in HIDE:
        run(session.connection(), statement, rows)


def forget(session: Session, segment_ids: Collection[RemoteLogSegmentId]) -> None:
    """The segments are deleted: lists by epoch no longer show them."""
    rows = [segment_row(segment_id) for segment_id in segment_ids]
    run(session.connection(), FORGET, rows)
