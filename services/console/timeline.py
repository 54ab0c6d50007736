"""Read the segments of a partition in columns, and join them into few bins for a chart."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from services.api.errors import InvalidRequestError, ThrottledError
from services.api.ids import TopicIdPartition
from services.api.partitions import PartitionState
from services.api.segment_batches import SegmentScan
from services.api.segments import RemoteLogSegmentState
from services.console.tier import Tier
from services.console.topics import descriptions, local_as_json

Json = dict[str, Any]

MAX_BINS = 2_000
MAX_HOLES = 200
"""The most ranges without a segment that an answer names, the longest first."""

MAX_SEGMENTS = 1_000_000
"""The most segments of a partition that are read; a partition with more is refused."""

COLUMNS_AGE_S = 1.0
"""How old the columns of a partition that changes may be; others are kept while they are true."""

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED.value
_READ = (
    "segment_id",
    "start_offset",
    "end_offset",
    "max_timestamp_ms",
    "segment_size_in_bytes",
    "state",
    "leader_epochs",
)


@dataclass(frozen=True, slots=True)
class TimelineQuery:
    """What part of a partition to show.

    Attributes:
        axis: "offset" or "time".
        first, last: the range on that axis, both inclusive; None: to the end.
        bins: at most so many bins for each state of segments.
    """

    axis: str = "offset"
    first: int | None = None
    last: int | None = None
    bins: int = 1_000

    def __post_init__(self) -> None:
        if self.axis not in ("offset", "time"):
            raise InvalidRequestError(f"axis: must be offset or time, is {self.axis[:40]!r}")
        if not 1 <= self.bins <= MAX_BINS:
            raise InvalidRequestError(f"bins: must be 1 to {MAX_BINS:,}, is {self.bins}")
        if self.first is not None and self.last is not None and self.first > self.last:
            raise InvalidRequestError(f"from: {self.first} is above to, {self.last}")


@dataclass(frozen=True, slots=True)
class Columns:
    """All segments of a partition at one revision, ascending by start offset.

    The table's columns: id, start, end, from_ms, to_ms, bytes, epoch_first, epoch_last, state. A
    segment has only the time of its latest record: it is shown from that of the segment before.
    """

    revision: int
    table: Any


def columns_of(tier: Tier, name: TopicIdPartition) -> Columns:
    """Read a partition's segments, or take those that were read before if nothing has changed.

    Raises:
        ThrottledError: the partition has more than MAX_SEGMENTS.
        RemoteResourceNotFoundError: the partition is unknown or was removed.
    """
    kept: Columns | None = tier.columns.peek(name)
    known = None if kept is None else kept.revision
    page = tier.metadata.list_remote_log_segments(name, if_revision_not=known, page_size=1)
    if kept is not None and page.not_modified:
        return kept
    read = partial(_read, tier, name, page.revision)
    return tier.columns.get(name, COLUMNS_AGE_S, read)


def _read(tier: Tier, name: TopicIdPartition, revision: int) -> Columns:
    batches, rows = [], 0
    columns = ("topic_id", "partition", *_READ)
    scan = SegmentScan(topic=name.topic, partition=name.partition, columns=columns)
    for batch in tier.metadata.scan_remote_log_segments(scan):
        with pa.ipc.open_stream(batch.arrow_ipc) as stream:
            table = stream.read_all()
        is_ours = pc.and_(
            pc.equal(table["topic_id"], str(name.topic_id)),
            pc.equal(table["partition"], name.partition),
        )
        ours = table.filter(is_ours).select(_READ)
        if ours.num_rows:
            batches.append(ours)
            rows += ours.num_rows
        if rows > MAX_SEGMENTS:
            raise ThrottledError(
                f"{name.topic}-{name.partition} has more than {MAX_SEGMENTS:,} segments; list them "
                "with `sediment segments`"
            )
    return Columns(revision, _prepared(pa.concat_tables(batches)) if batches else _EMPTY)


_EMPTY = pa.table(
    {
        "id": pa.array([], pa.string()),
        **{
            column: pa.array([], pa.int64())
            for column in ("start", "end", "from_ms", "to_ms", "bytes", "epoch_first", "epoch_last")
        },
        "state": pa.array([], pa.string()),
    }
)


def _prepared(table: Any) -> Any:
    """Return the columns of Columns; a time before that of an earlier segment counts as equal."""
    to_ms = pc.cumulative_max(table["max_timestamp_ms"].combine_chunks())
    # The first segment has no segment before it: it is shown from its own time.
    before = pa.concat_arrays([to_ms.slice(0, 1), to_ms.slice(0, len(to_ms) - 1)])
    epochs = table["leader_epochs"].combine_chunks()
    return pa.table(
        {
            "id": table["segment_id"].combine_chunks(),
            "start": table["start_offset"].combine_chunks(),
            "end": table["end_offset"].combine_chunks(),
            "from_ms": before,
            "to_ms": to_ms,
            "bytes": pc.cast(table["segment_size_in_bytes"].combine_chunks(), pa.int64()),
            "epoch_first": pc.cast(pc.list_element(epochs, 0), pa.int64()),
            "epoch_last": pc.cast(_last_of(epochs), pa.int64()),
            "state": table["state"].combine_chunks(),
        }
    )


def _last_of(lists: Any) -> Any:
    """Return the last element of each list; none is empty."""
    ends = pc.subtract(lists.offsets.slice(1), 1)
    return lists.values.take(ends)


def timeline(tier: Tier, name: TopicIdPartition, query: TimelineQuery) -> Json:
    """Return the part of a partition that a chart shows, in a bounded number of items."""
    state_later = tier.workers.submit(tier.metadata.partition_state, name)
    columns, described = columns_of(tier, name), descriptions(tier)
    state = state_later.result().value
    local = described.partitions.get(name)
    whole = _whole(
        columns.table, query.axis, state, None if local is None else local.log_end_offset
    )
    first = whole[0] if query.first is None else query.first
    last = whole[1] if query.last is None else query.last
    shown = _within(columns.table, query.axis, first, last)
    return {
        "revision": columns.revision,
        "read_at_ms": state.read_at_ms,
        "axis": query.axis,
        "from": first,
        "to": last,
        "whole_from": whole[0],
        "whole_to": whole[1],
        "segments": columns.table.num_rows,
        "shown_segments": shown.num_rows,
        "items": _items(shown, query, first, last),
        "holes": _holes(columns.table, first, last) if query.axis == "offset" else [],
        "gaps": [
            {"start": gap.start_offset, "end": gap.end_offset, "kind": gap.kind}
            for gap in state.gaps
        ],
        "log_start_offset": state.log_start_offset,
        "report": _report(state),
        "local": None if local is None else local_as_json(local),
        "unread": described.unread,
    }


def _report(state: PartitionState) -> Json | None:
    report = state.report
    if report is None:
        return None
    return {
        "age_ms": state.report_age_ms,
        "broker_id": report.broker_id,
        "leader_epoch": report.leader_epoch,
        "log_end_offset": report.log_end_offset,
        "copied_through_offset": report.copied_through_offset,
        "only_local_bytes": report.only_local_bytes,
    }


def _ends_of(axis: str) -> tuple[str, str]:
    return ("start", "end") if axis == "offset" else ("from_ms", "to_ms")


def _whole(
    table: Any, axis: str, state: PartitionState, local_end_offset: int | None
) -> tuple[int, int]:
    """Return the range of everything that is known, both inclusive."""
    low, high = _ends_of(axis)
    firsts, lasts = [], []
    if table.num_rows:
        firsts.append(pc.min(table[low]).as_py())
        lasts.append(pc.max(table[high]).as_py())
    if axis == "offset":
        firsts += [gap.start_offset for gap in state.gaps]
        lasts += [gap.end_offset for gap in state.gaps]
        if local_end_offset is not None:
            lasts.append(local_end_offset)
    first = max(min(firsts, default=0), 0)
    return first, max(max(lasts, default=0), first)


def _within(table: Any, axis: str, first: int, last: int) -> Any:
    low, high = _ends_of(axis)
    return table.filter(
        pc.and_(pc.less_equal(table[low], last), pc.greater_equal(table[high], first))
    )


def _items(shown: Any, query: TimelineQuery, first: int, last: int) -> list[Json]:
    """Return each segment if they are few, else the bins of each state."""
    if shown.num_rows <= query.bins:
        rows = shown.append_column("count", pa.array([1] * shown.num_rows, pa.int64()))
        return [*rows.to_pylist()]
    low, _ = _ends_of(query.axis)
    width = max(-(-(last - first + 1) // query.bins), 1)
    # A segment that begins before the range counts for the first bin.
    begins = pc.max_element_wise(shown[low], first)
    shown = shown.append_column("bin", pc.divide(pc.subtract(begins, first), width))
    binned = shown.group_by(["bin", "state"]).aggregate(
        [
            ("start", "min"),
            ("end", "max"),
            ("from_ms", "min"),
            ("to_ms", "max"),
            ("bytes", "sum"),
            ("epoch_first", "min"),
            ("epoch_last", "max"),
            ("id", "min"),
            ("bin", "count"),
        ]
    )
    names = {
        "start_min": "start",
        "end_max": "end",
        "from_ms_min": "from_ms",
        "to_ms_max": "to_ms",
        "bytes_sum": "bytes",
        "epoch_first_min": "epoch_first",
        "epoch_last_max": "epoch_last",
        "id_min": "id",
        "bin_count": "count",
        "state": "state",
    }
    found = binned.select(list(names)).rename_columns(list(names.values())).sort_by("start")
    return [
        # The id of one of many segments would name the wrong one.
        {**row, "id": row["id"] if row["count"] == 1 else None}
        for row in found.to_pylist()
    ]


def _holes(table: Any, first: int, last: int) -> list[Json]:
    """Return offsets between finished segments that no finished segment holds, the longest."""
    done = table.filter(pc.equal(table["state"], _FINISHED))
    if done.num_rows < 2:
        return []
    covered = pc.cumulative_max(done["end"].combine_chunks())
    starts = pc.add(covered.slice(0, len(covered) - 1), 1)
    ends = pc.subtract(done["start"].combine_chunks().slice(1), 1)
    holes = pa.table({"start": starts, "end": ends})
    holes = holes.filter(
        pc.and_(
            pc.greater_equal(holes["end"], holes["start"]),
            pc.and_(pc.less_equal(holes["start"], last), pc.greater_equal(holes["end"], first)),
        )
    )
    length = pc.subtract(holes["end"], holes["start"])
    holes = holes.append_column("length", length).sort_by([("length", "descending")])
    return sorted(
        (
            {"start": row["start"], "end": row["end"]}
            for row in holes.slice(0, MAX_HOLES).to_pylist()
        ),
        key=lambda hole: hole["start"],
    )
