"""Recorded gaps, remote_log_metadata_manager.proto."""

from services.api.offset_gaps import OffsetGap
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb


def gap_to_proto(gap: OffsetGap) -> pb.OffsetGap:
    return pb.OffsetGap(start_offset=gap.start_offset, end_offset=gap.end_offset, kind=gap.kind)


def gap_from_proto(message: pb.OffsetGap) -> OffsetGap:
    return OffsetGap(message.start_offset, message.end_offset, message.kind)
