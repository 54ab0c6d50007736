"""Finished segments that go on where all before them ended: many at once.

What visibility.show would make of each, one after the other, is known beforehand: it shares no
offset with another, and displaces at most what begins where it does and has no offsets. So its rows
are written once, as they are to be.
"""

from collections.abc import Iterator, Sequence

from sqlalchemy.orm import Session

from services.api.segments import RemoteLogSegmentMetadata
from services.rlmm.json_rows import JsonRow, key_of, partition_row, run, segment_row

# The first offset that comes in each epoch.
_FIRST = """json_to_recordset(%(rows)s) AS first (
        topic_id uuid, partition int, leader_epoch int, start_offset bigint)"""

_IN_ITS_EPOCH = """topic_id = first.topic_id AND partition = first.partition
                AND leader_epoch = first.leader_epoch"""

_DISPLACE = f"""
    UPDATE segment_epochs SET overlapped = true, referenced = false
    WHERE ctid = ANY(ARRAY(
        SELECT displaced.ctid
        FROM {_FIRST}
        CROSS JOIN LATERAL (
            SELECT ctid FROM segment_epochs
            WHERE {_IN_ITS_EPOCH} AND referenced AND start_offset >= first.start_offset
            ORDER BY start_offset LIMIT 1
        ) AS displaced))"""

_LAST_BEFORE = f"""
    SELECT first.leader_epoch, before.end_offset
    FROM {_FIRST}
    CROSS JOIN LATERAL (
        SELECT end_offset FROM segment_epochs
        WHERE {_IN_ITS_EPOCH} AND referenced AND start_offset < first.start_offset
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

_RAISE_HIGHEST_OFFSETS = """
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
    run(connection, _DISPLACE, firsts)
    last_ends = {row.leader_epoch: row.end_offset for row in run(connection, _LAST_BEFORE, firsts)}
    rows = list(_rows(segments, last_ends))
    for statement in (_ADD, _RAISE_HIGHEST_OFFSETS):
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
