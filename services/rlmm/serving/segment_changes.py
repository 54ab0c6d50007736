"""RLMM on the wire: segments are added and move from state to state."""

import grpc

from services.api.validation import within
from services.rlmm.serving.serves_rlmm import ServesRlmm
from services.rpc.converters.batches import (
    add_outcome_to_proto,
    addition_from_proto,
    additions_from_proto,
)
from services.rpc.converters.bulk import segment_updates_from_proto, update_outcome_to_proto
from services.rpc.converters.shared import (
    context_from_proto,
    outcome_to_proto,
    update_from_proto,
)
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb


class SegmentChangesServicer(ServesRlmm):
    """Serves services.api.segment_changes.SegmentChanges."""

    def AddRemoteLogSegmentMetadata(
        self, request: pb.AddRemoteLogSegmentMetadataRequest, context: grpc.ServicerContext
    ) -> pb.AddRemoteLogSegmentMetadataResponse:
        item = addition_from_proto(request)
        outcome = self._manager.add_remote_log_segment_metadata(
            item.metadata, item.context, lease_ms=item.lease_ms
        )
        return pb.AddRemoteLogSegmentMetadataResponse(outcome=outcome_to_proto(outcome))

    def AddRemoteLogSegmentMetadataBatch(
        self, request: pb.AddRemoteLogSegmentMetadataBatchRequest, context: grpc.ServicerContext
    ) -> pb.AddRemoteLogSegmentMetadataBatchResponse:
        additions = additions_from_proto(request.adds)
        outcomes = self._manager.add_remote_log_segment_metadata_batch(additions)
        return pb.AddRemoteLogSegmentMetadataBatchResponse(
            outcomes=[add_outcome_to_proto(outcome) for outcome in outcomes]
        )

    def UpdateRemoteLogSegmentMetadata(
        self, request: pb.UpdateRemoteLogSegmentMetadataRequest, context: grpc.ServicerContext
    ) -> pb.UpdateRemoteLogSegmentMetadataResponse:
        with within("update"):
            update = update_from_proto(request.update)
        with within("context"):
            why = context_from_proto(request.context)
        outcome = self._manager.update_remote_log_segment_metadata(update, why)
        return pb.UpdateRemoteLogSegmentMetadataResponse(outcome=outcome_to_proto(outcome))

    def UpdateRemoteLogSegmentMetadataBatch(
        self,
        request: pb.UpdateRemoteLogSegmentMetadataBatchRequest,
        context: grpc.ServicerContext,
    ) -> pb.UpdateRemoteLogSegmentMetadataBatchResponse:
        updates = segment_updates_from_proto(request.updates)
        outcomes = self._manager.update_remote_log_segment_metadata_batch(updates)
        return pb.UpdateRemoteLogSegmentMetadataBatchResponse(
            outcomes=[update_outcome_to_proto(outcome) for outcome in outcomes]
        )
