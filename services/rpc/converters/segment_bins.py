"""Convert the messages of RLMM's BinRemoteLogSegments."""

from services.api.calls import AtRevision
from services.api.ids import uuid_from_text, uuid_to_text
from services.api.segment_batches import (
    BinnedSegments,
    BinQuery,
    OffsetRange,
    SegmentAxis,
    SegmentBin,
)
from services.rpc.converters.shared import (
    EnumConverter,
    partition_of,
    segment_state,
    topic_id_partition_to_proto,
)
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb

segment_axis = EnumConverter(SegmentAxis, pb.SegmentAxis, "SEGMENT_AXIS_")


def bin_query_to_proto(query: BinQuery) -> pb.BinRemoteLogSegmentsRequest:
    return pb.BinRemoteLogSegmentsRequest(
        topic_id_partition=topic_id_partition_to_proto(query.topic_id_partition),
        axis=segment_axis.to_proto(query.axis),
        first=query.first,
        last=query.last,
        bins=query.bins,
    )


def bin_query_from_proto(message: pb.BinRemoteLogSegmentsRequest) -> BinQuery:
    return BinQuery(
        partition_of(message),
        axis=segment_axis.from_proto(message.axis, "axis"),
        first=message.first if message.HasField("first") else None,
        last=message.last if message.HasField("last") else None,
        bins=message.bins,
    )


def bins_to_proto(found: AtRevision[BinnedSegments]) -> pb.BinRemoteLogSegmentsResponse:
    binned = found.value
    return pb.BinRemoteLogSegmentsResponse(
        bins=map(_bin_to_proto, binned.bins),
        holes=[
            pb.OffsetRange(start_offset=hole.start_offset, end_offset=hole.end_offset)
            for hole in binned.holes
        ],
        segments_in_range=binned.segments_in_range,
        segments=binned.segments,
        first=binned.first,
        last=binned.last,
        revision=found.revision,
    )


def bins_from_proto(message: pb.BinRemoteLogSegmentsResponse) -> AtRevision[BinnedSegments]:
    binned = BinnedSegments(
        segments=message.segments,
        first=message.first if message.HasField("first") else None,
        last=message.last if message.HasField("last") else None,
        segments_in_range=message.segments_in_range,
        bins=tuple(map(_bin_from_proto, message.bins)),
        holes=tuple(OffsetRange(hole.start_offset, hole.end_offset) for hole in message.holes),
    )
    return AtRevision(binned, message.revision)


def _bin_to_proto(each: SegmentBin) -> pb.SegmentBin:
    return pb.SegmentBin(
        state=segment_state.to_proto(each.state),
        segments=each.segments,
        first=each.first,
        last=each.last,
        start_offset=each.start_offset,
        end_offset=each.end_offset,
        max_timestamp_ms=each.max_timestamp_ms,
        size_in_bytes=each.size_bytes,
        lowest_leader_epoch=each.lowest_leader_epoch,
        highest_leader_epoch=each.highest_leader_epoch,
        segment_id="" if each.segment_id is None else uuid_to_text(each.segment_id),
    )


def _bin_from_proto(message: pb.SegmentBin) -> SegmentBin:
    segment_id = message.segment_id
    return SegmentBin(
        state=segment_state.from_proto(message.state, "state"),
        segments=message.segments,
        first=message.first,
        last=message.last,
        start_offset=message.start_offset,
        end_offset=message.end_offset,
        max_timestamp_ms=message.max_timestamp_ms,
        size_bytes=message.size_in_bytes,
        lowest_leader_epoch=message.lowest_leader_epoch,
        highest_leader_epoch=message.highest_leader_epoch,
        segment_id=uuid_from_text(segment_id, "segment_id") if segment_id else None,
    )
