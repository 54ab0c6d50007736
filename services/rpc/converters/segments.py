"""Convert RLMM's messages about segments: pages, changes, batches, look-ups, scans, bins, imports,
and runs of tools over them.
"""

from collections.abc import Sequence
from typing import TypeVar
from uuid import UUID

from services.api.calls import AtRevision
from services.api.errors import RemoteStorageError
from services.api.ids import uuid_from_text
from services.api.operations import (
    RecordedRun,
    RunCounts,
    RunPage,
    ToolRun,
)
from services.api.remote_log_metadata_manager import KeptPage, SegmentPage, SegmentUpdate
from services.api.segment_batches import (
    AddOutcome,
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
)
from services.rpc.converters.fields import converters, items_from_proto
from services.rpc.converters.shared import (
    metadata_from_proto,
    outcome_from_proto,
    outcome_to_proto,
    partition_of,
    run_kind,
    run_outcome,
    topic_id_partition_to_proto,
    write_metadata,
)
from services.rpc.statuses import error_of, status_of
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb

Outcome = TypeVar("Outcome", pb.AddOutcome, pb.UpdateOutcome)

segment_page_to_proto, segment_page_from_proto = converters(
    SegmentPage, pb.ListRemoteLogSegmentsResponse
)
kept_page_to_proto, kept_page_from_proto = converters(KeptPage, pb.ListKeptSegmentsResponse)
addition_to_proto, addition_from_proto = converters(
    SegmentAddition, pb.AddRemoteLogSegmentMetadataRequest
)
segment_update_to_proto, segment_update_from_proto = converters(
    SegmentUpdate, pb.UpdateRemoteLogSegmentMetadataRequest
)
scan_to_proto, scan_from_proto = converters(SegmentScan, pb.ScanRemoteLogSegmentsRequest)
segment_batch_to_proto, segment_batch_from_proto = converters(
    SegmentBatch, pb.ScanRemoteLogSegmentsResponse
)
import_to_proto, import_from_proto = converters(SegmentImport, pb.ImportRemoteLogSegmentsRequest)
imported_to_proto, imported_from_proto = converters(
    ImportedSegments, pb.ImportRemoteLogSegmentsResponse, names={"repeated": "repeated_segments"}
)
bin_query_to_proto, bin_query_from_proto = converters(BinQuery, pb.BinRemoteLogSegmentsRequest)
converters(SegmentBin, pb.SegmentBin, names={"size_bytes": "size_in_bytes"})
_binned_to_proto, _binned_from_proto = converters(
    BinnedSegments, pb.BinRemoteLogSegmentsResponse, besides=["revision"]
)


def bins_to_proto(bins: AtRevision[BinnedSegments]) -> pb.BinRemoteLogSegmentsResponse:
    message = _binned_to_proto(bins.value)
    message.revision = bins.revision
    return message


def bins_from_proto(message: pb.BinRemoteLogSegmentsResponse) -> AtRevision[BinnedSegments]:
    return AtRevision(_binned_from_proto(message), message.revision)


def change_outcome_to_proto(outcome: AddOutcome, wire: type[Outcome]) -> Outcome:
    if isinstance(outcome, RemoteStorageError):
        return wire(error=status_of(outcome))
    return wire(result=outcome_to_proto(outcome))


def change_outcome_from_proto(message: pb.AddOutcome | pb.UpdateOutcome) -> AddOutcome:
    if message.HasField("result"):
        return outcome_from_proto(message.result)
    return error_of(message.error)


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
    outcomes: Sequence[LookupOutcome],
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


def ids_from_proto(ids: Sequence[str]) -> list[UUID]:
    return [uuid_from_text(id, f"ids[{index}]") for index, id in enumerate(ids)]


_run_to_proto, _run_from_proto = converters(ToolRun, pb.ReportToolRunRequest, besides=["counts"])
_counts_to_proto, _counts_from_proto = converters(RunCounts, pb.RunCounts)
_recorded_to_proto, _recorded_from_proto = converters(RecordedRun, pb.RecordedRun)


def run_to_proto(run: ToolRun, counts: Sequence[RunCounts]) -> pb.ReportToolRunRequest:
    message = _run_to_proto(run)
    message.counts.extend(map(_counts_to_proto, counts))
    return message


def run_from_proto(message: pb.ReportToolRunRequest) -> tuple[ToolRun, tuple[RunCounts, ...]]:
    counts = items_from_proto(message.counts, "counts", _counts_from_proto)
    return _run_from_proto(message), counts


def run_page_to_proto(page: RunPage) -> pb.ListToolRunsResponse:
    runs = map(_recorded_to_proto, page.runs)
    return pb.ListToolRunsResponse(runs=runs, next_page_token=page.next_page_token)


def run_page_from_proto(message: pb.ListToolRunsResponse) -> RunPage:
    """Read a page; omit kinds and outcomes that only a later release knows."""
    runs = (
        _recorded_from_proto(each)
        for each in message.runs
        if run_kind.knows(each.kind) and run_outcome.knows(each.outcome)
    )
    return RunPage(tuple(runs), message.next_page_token)
