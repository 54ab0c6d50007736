"""Many look-ups at once: remote_log_segment_metadata_batch, one statement for all."""

import re
from collections.abc import Sequence

from sqlalchemy import Connection

from services.api.calls import AtRevision
from services.api.errors import RemoteStorageError, ThrottledError
from services.api.ids import TopicIdPartition
from services.api.segment_batches import MAX_BATCH, LookupOutcome, SegmentLookup
from services.api.segments import RemoteLogSegmentMetadata
from services.api.validation import require
from services.rlmm.json_rows import JsonRow, key_of, partition_row, run
from services.rlmm.lookups import SEGMENT_AT
from services.rlmm.message_sizes import MAX_PAGE_BYTES, segment_size_bytes
from services.rlmm.partitions import check_topic_name, unknown_partition
from services.rlmm.rows import SEGMENT_COLUMNS, AnyRow, segment_from_row

_COLUMNS = ", ".join(f"s.{name}" for name in SEGMENT_COLUMNS)
_SEGMENT_AT_EACH = re.sub(r"%\((\w+)\)s", r"wanted.\1", SEGMENT_AT)

# Rows found by their keys, with LIMIT 1: no plan reads a table whole for them.
SEGMENTS_FOR_OFFSETS = f"""
    SELECT wanted.place, p.topic, p.revision, {_COLUMNS}
    FROM json_to_recordset(%(rows)s) AS wanted (
        place int, topic_id uuid, partition int, leader_epoch int, "offset" bigint)
    CROSS JOIN LATERAL (
        SELECT t.name AS topic, p.revision
        FROM partitions AS p JOIN topics AS t ON t.topic_id = p.topic_id
        WHERE p.topic_id = wanted.topic_id AND p.partition = wanted.partition
            AND p.delete_state IS DISTINCT FROM 'DELETE_PARTITION_FINISHED'
        LIMIT 1
    ) AS p
    LEFT JOIN LATERAL ({_SEGMENT_AT_EACH}
        LIMIT 1
    ) AS found ON true
    LEFT JOIN LATERAL (
        SELECT {_COLUMNS} FROM segments AS s
        WHERE s.topic_id = wanted.topic_id AND s.partition = wanted.partition
            AND s.segment_id = found.segment_id
        LIMIT 1
    ) AS s ON true"""


def check_lookups(lookups: Sequence[SegmentLookup]) -> None:
    """Raise InvalidRequestError where there are none or too many."""
    count = len(lookups)
    require(1 <= count <= MAX_BATCH, "lookups", f"must be 1 to {MAX_BATCH}, are {count}")


def find_segments(connection: Connection, lookups: Sequence[SegmentLookup]) -> list[LookupOutcome]:
    """See RemoteLogMetadataManager.remote_log_segment_metadata_batch."""
    wanted = [_wanted(place, lookup) for place, lookup in enumerate(lookups)]
    rows = {row.place: row for row in run(connection, SEGMENTS_FOR_OFFSETS, wanted)}
    left_bytes = MAX_PAGE_BYTES
    outcomes: list[LookupOutcome] = []
    for place, lookup in enumerate(lookups):
        row = rows.get(place)
        if row is not None and row.segment_id is not None:
            left_bytes -= segment_size_bytes(row)
        outcomes.append(_outcome(row, lookup.topic_id_partition, fits=left_bytes >= 0))
    return outcomes


def _wanted(place: int, lookup: SegmentLookup) -> JsonRow:
    return {
        **partition_row(key_of(lookup.topic_id_partition)),
        "place": place,
        "leader_epoch": lookup.epoch_for_offset,
        "offset": lookup.offset,
    }


def _outcome(row: AnyRow | None, tp: TopicIdPartition, *, fits: bool) -> LookupOutcome:
    if row is None:
        return unknown_partition(tp)
    try:
        check_topic_name(tp, row.topic)
    except RemoteStorageError as e:
        return e
    found: RemoteLogSegmentMetadata | None = None
    if row.segment_id is not None:
        if not fits:
            return ThrottledError("the segments before this one fill the answer; ask again for it")
        found = segment_from_row(row, tp)
    return AtRevision(found, row.revision)
