"""Join the segments of a partition into few bins, in the database (bin_remote_log_segments)."""

from collections.abc import Mapping
from operator import itemgetter
from uuid import UUID

from sqlalchemy import Connection

from services.api.calls import AtRevision
from services.api.segment_batches import (
    MAX_HOLES,
    BinnedSegments,
    BinQuery,
    OffsetRange,
    SegmentAxis,
    SegmentBin,
)
from services.api.segments import RemoteLogSegmentState
from services.api.validation import INT64_MAX
from services.rlmm.database.db import IS_KNOWN, PARTITIONS, execute, key_of, key_values
from services.rlmm.database.rows import AnyRow
from services.rlmm.guards import check_topic_name, unknown_partition

_BEFORE = "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
_LATEST_BEFORE = f"max(max_timestamp_ms) OVER (in_order {_BEFORE})"

# The first segment has no segment before it: it begins at its own time.
_FIRST_AND_LAST: Mapping[SegmentAxis, str] = {
    SegmentAxis.OFFSET: "start_offset AS first, end_offset AS last",
    SegmentAxis.TIME: f"""coalesce({_LATEST_BEFORE}, max_timestamp_ms) AS first,
        greatest({_LATEST_BEFORE}, max_timestamp_ms) AS last""",
}

_OF_PARTITION = """
    topic_id = %(topic_id)s AND partition = %(partition)s AND state <> 'DELETE_SEGMENT_FINISHED'"""


def _segments(axis: SegmentAxis) -> str:
    """Return SQL for all segments of the partition, with what they cover on the axis."""
    return f"""
        SELECT *, {_FIRST_AND_LAST[axis]} FROM segments WHERE {_OF_PARTITION}
        WINDOW in_order AS (ORDER BY start_offset, segment_id)"""


_IN_RANGE = "first <= %(last)s AND last >= %(first)s"

_FIGURES = {
    axis: f"""
    SELECT t.name AS topic, p.revision, figures.*
    FROM {PARTITIONS} CROSS JOIN (
        SELECT count(*) AS segments, count(*) FILTER (WHERE {_IN_RANGE}) AS segments_in_range,
            min(first) AS first, max(last) AS last
        FROM ({_segments(axis)}) AS segments
    ) AS figures
    WHERE p.topic_id = %(topic_id)s AND p.partition = %(partition)s AND {IS_KNOWN}"""
    for axis in SegmentAxis
}

_EACH_SEGMENT = "segment_id"
_EACH_BIN = "(greatest(first, %(origin)s) - %(origin)s) / %(width)s"


def _bins(axis: SegmentAxis, key: str) -> str:
    """Return the statement that joins the segments of the range that have the same key."""
    # Ids are compared byte by byte, which is much faster than by the rules of a language.
    return f"""
        SELECT state, count(*) AS segments, min(first) AS first, max(last) AS last,
            min(start_offset) AS start_offset, max(end_offset) AS end_offset,
            max(max_timestamp_ms) AS max_timestamp_ms,
            sum(greatest(segment_size_in_bytes, 0)) AS size_bytes,
            min(leader_epochs[1]) AS lowest_leader_epoch,
            max(leader_epochs[cardinality(leader_epochs)]) AS highest_leader_epoch,
            min(segment_id::text COLLATE "C") AS segment_id
        FROM ({_segments(axis)}) AS segments
        WHERE {_IN_RANGE} GROUP BY state, {key} ORDER BY min(start_offset), state"""


_HOLES = f"""
    SELECT covered + 1 AS first, start_offset - 1 AS last FROM (
        SELECT start_offset, max(end_offset) OVER (in_order {_BEFORE}) AS covered
        FROM segments WHERE {_OF_PARTITION} AND state = 'COPY_SEGMENT_FINISHED'
        WINDOW in_order AS (ORDER BY start_offset, segment_id)
    ) AS segments
    WHERE covered < start_offset - 1 AND covered < %(last)s AND start_offset > %(first)s
    ORDER BY start_offset - covered DESC LIMIT {MAX_HOLES}"""


def read(connection: Connection, query: BinQuery) -> AtRevision[BinnedSegments]:
    """Read bins; see RemoteLogMetadataManager.bin_remote_log_segments."""
    tp = query.topic_id_partition
    values: dict[str, object] = {
        **key_values(key_of(tp)),
        "first": -1 if query.first is None else query.first,
        "last": INT64_MAX if query.last is None else query.last,
    }
    figures = execute(connection, _FIGURES[query.axis], values).fetchone()
    if figures is None:
        raise unknown_partition(tp)
    check_topic_name(tp, figures.topic)
    binned = BinnedSegments(
        segments=figures.segments,
        first=figures.first,
        last=figures.last,
        segments_in_range=figures.segments_in_range,
        bins=_read_bins(connection, query, figures, values),
        holes=_read_holes(connection, values) if query.axis is SegmentAxis.OFFSET else (),
    )
    return AtRevision(binned, figures.revision)


def _read_bins(
    connection: Connection, query: BinQuery, figures: AnyRow, values: Mapping[str, object]
) -> tuple[SegmentBin, ...]:
    if not figures.segments_in_range:
        return ()
    if figures.segments_in_range <= query.bins:
        statement, more = _bins(query.axis, _EACH_SEGMENT), {}
    else:
        # Segments without a time count for the first bin.
        origin = max(figures.first, 0) if query.first is None else query.first
        last = figures.last if query.last is None else query.last
        width = max(-(-(last - origin + 1) // query.bins), 1)
        statement, more = _bins(query.axis, _EACH_BIN), {"origin": origin, "width": width}
    rows = execute(connection, statement, {**values, **more})
    return tuple(map(_bin, rows))


def _bin(row: AnyRow) -> SegmentBin:
    only = UUID(row.segment_id) if row.segments == 1 else None
    state = RemoteLogSegmentState(row.state)
    return SegmentBin(**{**row._asdict(), "state": state, "segment_id": only})


def _read_holes(connection: Connection, values: Mapping[str, object]) -> tuple[OffsetRange, ...]:
    rows = execute(connection, _HOLES, values)
    return tuple(OffsetRange(row.first, row.last) for row in sorted(rows, key=itemgetter(0)))
