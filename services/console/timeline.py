"""Show a part of a partition: its segments in bins, what is missing, and the local log."""

from typing import Any

from services.api.ids import uuid_to_text
from services.api.partitions import PartitionState
from services.api.segment_batches import BinnedSegments, BinQuery, SegmentAxis, SegmentBin
from services.console.tier import Tier
from services.console.topics import descriptions, local_as_json

Json = dict[str, Any]


def timeline(tier: Tier, query: BinQuery) -> Json:
    """Return the part of a partition that a chart shows, in a bounded number of items.

    Raises:
        RemoteResourceNotFoundError: the partition is unknown or was removed.
    """
    name = query.topic_id_partition
    state_later = tier.workers.submit(tier.metadata.partition_state, name)
    found, described = tier.metadata.bin_remote_log_segments(query), descriptions(tier)
    binned, state = found.value, state_later.result().value
    local = described.partitions.get(name)
    log_end_offset = None if local is None else local.log_end_offset
    first, last = _whole(binned, query.axis, state, log_end_offset)
    return {
        "revision": found.revision,
        "read_at_ms": state.read_at_ms,
        "axis": query.axis.value.lower(),
        "from": first if query.first is None else query.first,
        "to": last if query.last is None else query.last,
        "whole_from": first,
        "whole_to": last,
        "segments": binned.segments,
        "shown_segments": binned.segments_in_range,
        "items": [_bin_as_json(each) for each in binned.bins],
        "holes": [{"start": hole.start_offset, "end": hole.end_offset} for hole in binned.holes],
        "gaps": [
            {"start": gap.start_offset, "end": gap.end_offset, "kind": gap.kind}
            for gap in state.gaps
        ],
        "log_start_offset": state.log_start_offset,
        "report": _report(state),
        "local": None if local is None else local_as_json(local),
        "unread": described.unread,
    }


def _bin_as_json(each: SegmentBin) -> Json:
    return {
        "id": None if each.segment_id is None else uuid_to_text(each.segment_id),
        "state": each.state.value,
        "count": each.segments,
        "first": each.first,
        "last": each.last,
        "start": each.start_offset,
        "end": each.end_offset,
        "max_timestamp_ms": each.max_timestamp_ms,
        "bytes": each.size_bytes,
        "epoch_first": each.lowest_leader_epoch,
        "epoch_last": each.highest_leader_epoch,
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


def _whole(
    binned: BinnedSegments, axis: SegmentAxis, state: PartitionState, log_end_offset: int | None
) -> tuple[int, int]:
    """Return the range of everything that is known, both inclusive."""
    firsts = [] if binned.first is None else [binned.first]
    lasts = [] if binned.last is None else [binned.last]
    if axis is SegmentAxis.OFFSET:
        firsts += [gap.start_offset for gap in state.gaps]
        lasts += [gap.end_offset for gap in state.gaps]
        if log_end_offset is not None:
            lasts.append(log_end_offset)
    first = max(min(firsts, default=0), 0)
    return first, max(max(lasts, default=0), first)
