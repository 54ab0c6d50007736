"""Batches of updates and scans of segments, remote_log_metadata_manager.proto."""

from collections.abc import Sequence

from services.api.errors import RemoteStorageError
from services.api.segment_changes import SegmentUpdate, UpdateOutcome
from services.api.segment_scan import SegmentBatch, SegmentScan
from services.api.validation import within
from services.rpc.converters.enums import partition_delete_state, segment_state
from services.rpc.converters.shared import (
    context_from_proto,
    context_to_proto,
    items_from_proto,
    outcome_from_proto,
    outcome_to_proto,
    update_from_proto,
    update_to_proto,
)
from services.rpc.statuses import error_of, status_of
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb


def segment_update_to_proto(item: SegmentUpdate) -> pb.UpdateRemoteLogSegmentMetadataRequest:
    return pb.UpdateRemoteLogSegmentMetadataRequest(
        update=update_to_proto(item.update), context=context_to_proto(item.context)
    )


def segment_update_from_proto(message: pb.UpdateRemoteLogSegmentMetadataRequest) -> SegmentUpdate:
    with within("update"):
        update = update_from_proto(message.update)
    with within("context"):
        context = context_from_proto(message.context)
    return SegmentUpdate(update, context)


def segment_updates_from_proto(
    messages: Sequence[pb.UpdateRemoteLogSegmentMetadataRequest],
) -> tuple[SegmentUpdate, ...]:
    return items_from_proto(messages, "updates", segment_update_from_proto)


def update_outcome_to_proto(outcome: UpdateOutcome) -> pb.UpdateOutcome:
    if isinstance(outcome, RemoteStorageError):
        return pb.UpdateOutcome(error=status_of(outcome))
    return pb.UpdateOutcome(result=outcome_to_proto(outcome))


def update_outcome_from_proto(message: pb.UpdateOutcome) -> UpdateOutcome:
    if message.HasField("result"):
        return outcome_from_proto(message.result)
    return error_of(message.error)


def scan_to_proto(scan: SegmentScan) -> pb.ScanRemoteLogSegmentsRequest:
    return pb.ScanRemoteLogSegmentsRequest(
        shard=scan.shard,
        shards=scan.shards,
        states=[segment_state.to_proto(state) for state in scan.states],
        topic=scan.topic,
        delete_states=[partition_delete_state.to_proto(state) for state in scan.delete_states],
    )


def scan_from_proto(message: pb.ScanRemoteLogSegmentsRequest) -> SegmentScan:
    return SegmentScan(
        shard=message.shard,
        shards=message.shards,
        states=[segment_state.from_proto(state, "states") for state in message.states],
        topic=message.topic,
        delete_states=[
            partition_delete_state.from_proto(state, "delete_states")
            for state in message.delete_states
        ],
    )


def segment_batch_to_proto(batch: SegmentBatch) -> pb.ScanRemoteLogSegmentsResponse:
    return pb.ScanRemoteLogSegmentsResponse(
        arrow_ipc=batch.arrow_ipc, rows=batch.rows, began_at_ms=batch.began_at_ms
    )


def segment_batch_from_proto(message: pb.ScanRemoteLogSegmentsResponse) -> SegmentBatch:
    return SegmentBatch(message.arrow_ipc, message.rows, message.began_at_ms)
