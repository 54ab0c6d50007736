"""Many look-ups at once: remote_log_segment_metadata_batch, one statement for all."""

import re
from collections.abc import Sequence

from sqlalchemy import Connection

from services.api.calls import AtRevision
from services.api.errors import RemoteStorageError, ThrottledError
from services.api.ids import TopicIdPartition
from services.api.segment_batches import LookupOutcome, SegmentLookup
from services.rlmm.json_rows import JsonRow, key_of, partition_row, stream
from services.rlmm.lookups import SEGMENT_AT
from services.rlmm.message_sizes import MAX_PAGE_BYTES, SEGMENT_BYTES
from services.rlmm.partitions import check_topic_name, unknown_partition
from services.rlmm.read_sql import IS_KNOWN, PARTITIONS, SEGMENT
from services.rlmm.rows import SEGMENT_COLUMNS, AnyRow, segment_from_row

_SEGMENT_AT_EACH = re.sub(r"%\((\w+)\)s", r"wanted.\1", SEGMENT_AT)

_IF_IT_FITS = ", ".join(
    f"CASE WHEN bytes <= {MAX_PAGE_BYTES} THEN {name} END AS {name}" for name in SEGMENT_COLUMNS
)

ROWS_AT_A_TIME = 50

# Rows found by their keys, with LIMIT 1: no plan reads a table whole for them. Nothing sorts: a row
# is answered when it is found, so the first of those that do not fit together is the last in order
# of their places only as long as nested loops keep it; each would be as true in any order.
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


def find_segments(connection: Connection, lookups: Sequence[SegmentLookup]) -> list[LookupOutcome]:
    """See RemoteLogMetadataManager.remote_log_segment_metadata_batch."""
    wanted = [_wanted(place, lookup) for place, lookup in enumerate(lookups)]
    # Read while the database looks up the next ones: both take about as long.
    outcomes = {
        row.place: _outcome(row, lookups[row.place].topic_id_partition)
        for row in stream(connection, SEGMENTS_FOR_OFFSETS, wanted, ROWS_AT_A_TIME)
    }
    return [
        outcomes[place] if place in outcomes else unknown_partition(lookup.topic_id_partition)
        for place, lookup in enumerate(lookups)
    ]


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
        return ThrottledError("the segments before this one fill the answer; ask again for it")
    found = None if row.segment_id is None else segment_from_row(row, tp)
    return AtRevision(found, row.revision)
