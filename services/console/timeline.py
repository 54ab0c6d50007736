"""Show a part of a partition: its segments in bins, what is missing, and the local log."""

from typing import Any

from services.api.ids import is_tail_uuid
from services.api.partitions import PartitionState
from services.api.segment_batches import BinnedSegments, BinQuery, SegmentAxis, SegmentBin
from services.console.tier import Tier
from services.console.topics import descriptions, local_as_json
from services.views.documents import as_json
from services.views.partition_facts import report_as_json

Json = dict[str, Any]


def timeline(tier: Tier, query: BinQuery) -> Json:
    """Return the part of a partition that a chart shows, in a bounded number of items.

    Raises:
        RemoteResourceNotFoundError: the partition is unknown or was removed.
    """
    name = query.topic_id_partition
    state_later = tier.clients.workers.submit(tier.metadata.partition_state, name)
    answer, described = tier.metadata.bin_remote_log_segments(query), descriptions(tier)
    binned, state = answer.value, state_later.result().value
    local = described.partitions.get(name)
    log_end_offset = None if local is None else local.log_end_offset
    first, last = _whole(binned, query.axis, state, log_end_offset)
    return {
        "revision": answer.revision,
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
        "report": report_as_json(state),
        "local": None if local is None else local_as_json(local),
        "unread": described.unread,
    }


def _bin_as_json(each: SegmentBin) -> Json:
    return {
        "id": as_json(each.segment_id),
        "state": each.state.value,
        "tail": each.segment_id is not None and is_tail_uuid(each.segment_id),
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
