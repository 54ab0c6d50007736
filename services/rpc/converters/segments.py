"""Convert RLMM's messages about segments: pages, changes, batches, look-ups, scans, bins, imports,
and runs of tools over them.
"""

from collections.abc import Iterable

from services.api.calls import AtRevision
from services.api.errors import RemoteStorageError
from services.api.operations import (
    RecordedRun,
    RunCounts,
    RunPage,
    ToolRun,
)
from services.api.remote_log_metadata_manager import KeptPage, SegmentPage, SegmentUpdate
from services.api.segment_batches import (
    BinnedSegments,
    BinQuery,
    ImportedSegments,
    LookupOutcome,
    SegmentAddition,
    SegmentBatch,
    SegmentBin,
    SegmentImport,
    SegmentLookup,
    SegmentScan,
    SourcePosition,
)
from services.rpc.converters.fields import converters, register_message
from services.rpc.converters.shared import (
    metadata_from_proto,
    partition_of,
    run_kind,
    run_outcome,
    topic_id_partition_to_proto,
    write_metadata,
)
from services.rpc.statuses import error_of, status_of
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb

converters(SegmentPage, pb.ListRemoteLogSegmentsResponse)
converters(KeptPage, pb.ListKeptSegmentsResponse)
converters(SegmentAddition, pb.AddRemoteLogSegmentMetadataRequest)
converters(SegmentUpdate, pb.UpdateRemoteLogSegmentMetadataRequest)
scan_to_proto, scan_from_proto = converters(SegmentScan, pb.ScanRemoteLogSegmentsRequest)
segment_batch_to_proto, segment_batch_from_proto = converters(
    SegmentBatch, pb.ScanRemoteLogSegmentsResponse
)
converters(SourcePosition, pb.SourcePosition)
import_to_proto, import_from_proto = converters(SegmentImport, pb.ImportRemoteLogSegmentsRequest)
imported_to_proto, imported_from_proto = converters(
    ImportedSegments, pb.ImportRemoteLogSegmentsResponse, names={"repeated": "repeated_segments"}
)
converters(BinQuery, pb.BinRemoteLogSegmentsRequest)
converters(SegmentBin, pb.SegmentBin, names={"size_bytes": "size_in_bytes"})
converters(BinnedSegments, pb.BinRemoteLogSegmentsResponse, besides=["revision"])


# By hand, as RemoteLogSegmentMetadata: batches have a thousand look-ups.
def lookup_to_proto(lookup: SegmentLookup) -> pb.GetRemoteLogSegmentMetadataRequest:
    return pb.GetRemoteLogSegmentMetadataRequest(
        topic_id_partition=topic_id_partition_to_proto(lookup.topic_id_partition),
        epoch_for_offset=lookup.epoch_for_offset,
        offset=lookup.offset,
    )


def lookup_from_proto(message: pb.GetRemoteLogSegmentMetadataRequest) -> SegmentLookup:
    return SegmentLookup(partition_of(message), message.epoch_for_offset, message.offset)


def lookup_outcomes_to_proto(
    outcomes: Iterable[LookupOutcome],
) -> pb.GetRemoteLogSegmentMetadataBatchResponse:
    response = pb.GetRemoteLogSegmentMetadataBatchResponse()
    for outcome in outcomes:
        _write_lookup_outcome(outcome, response.outcomes.add())
    return response


def _write_lookup_outcome(outcome: LookupOutcome, message: pb.LookupOutcome) -> None:
    """Write an outcome into an empty message within a larger one."""
    if isinstance(outcome, RemoteStorageError):
        message.error.CopyFrom(status_of(outcome))
        return
    message.result.revision = outcome.revision
    if outcome.value is not None:
        write_metadata(outcome.value, message.result.metadata)


def lookup_outcome_from_proto(message: pb.LookupOutcome) -> LookupOutcome:
    if not message.HasField("result"):
        return error_of(message.error)
    result = message.result
    found = metadata_from_proto(result.metadata) if result.HasField("metadata") else None
    return AtRevision(found, result.revision)


converters(ToolRun, pb.ReportToolRunRequest, besides=["counts"])
converters(RunCounts, pb.RunCounts)
_, _recorded_from_proto = converters(RecordedRun, pb.RecordedRun)
_run_page_to_proto = converters(RunPage, pb.ListToolRunsResponse)[0]


def _run_page_from_proto(message: pb.ListToolRunsResponse) -> RunPage:
    """Read a page; omit kinds and outcomes that only a later release knows."""
    runs = (
        _recorded_from_proto(each)
        for each in message.runs
        if run_kind.knows(each.kind) and run_outcome.knows(each.outcome)
    )
    return RunPage(tuple(runs), message.next_page_token)


register_message(RunPage, _run_page_to_proto, _run_page_from_proto)
