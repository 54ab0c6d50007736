"""Imports of segments, remote_log_metadata_manager.proto."""

from services.api.segment_imports import ImportedSegments, SegmentImport
from services.api.validation import within
from services.rpc.converters.shared import (
    context_from_proto,
    context_to_proto,
    items_from_proto,
    metadata_from_proto,
    metadata_to_proto,
)
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb


def import_to_proto(item: SegmentImport) -> pb.ImportRemoteLogSegmentsRequest:
    return pb.ImportRemoteLogSegmentsRequest(
        segments=[metadata_to_proto(segment) for segment in item.segments],
        context=context_to_proto(item.context),
    )


def import_from_proto(message: pb.ImportRemoteLogSegmentsRequest) -> SegmentImport:
    segments = items_from_proto(message.segments, "segments", metadata_from_proto)
    with within("context"):
        context = context_from_proto(message.context)
    return SegmentImport(segments, context)


def imported_to_proto(imported: ImportedSegments) -> pb.ImportRemoteLogSegmentsResponse:
    return pb.ImportRemoteLogSegmentsResponse(
        imported=imported.imported, repeated_segments=imported.repeated
    )


def imported_from_proto(message: pb.ImportRemoteLogSegmentsResponse) -> ImportedSegments:
    return ImportedSegments(message.imported, message.repeated_segments)
