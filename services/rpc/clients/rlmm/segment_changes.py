"""RLMM over gRPC: segments are added and move from state to state."""

from collections.abc import Sequence

from services.api.calls import NO_CONTEXT, MutationContext, MutationOutcome
from services.api.segment_batches import AddOutcome, SegmentAddition
from services.api.segment_changes import SegmentUpdate, UpdateOutcome
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from services.rpc.clients.calls import call_once
from services.rpc.clients.rlmm.calling import BULK_TIMEOUT_S, CallsRlmm
from services.rpc.converters.batches import add_outcome_from_proto, addition_to_proto
from services.rpc.converters.bulk import segment_update_to_proto, update_outcome_from_proto
from services.rpc.converters.shared import (
    context_to_proto,
    metadata_to_proto,
    outcome_from_proto,
    update_to_proto,
)
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb


class SegmentChangesClient(CallsRlmm):
    """Satisfies services.api.segment_changes.SegmentChanges."""

    def add_remote_log_segment_metadata(
        self,
        metadata: RemoteLogSegmentMetadata,
        context: MutationContext = NO_CONTEXT,
        *,
        lease_ms: int | None = None,
    ) -> MutationOutcome:
        request = pb.AddRemoteLogSegmentMetadataRequest(
            metadata=metadata_to_proto(metadata),
            context=context_to_proto(context),
            lease_ms=lease_ms,
        )
        reply = call_once(self._stub.AddRemoteLogSegmentMetadata, request, self._peer)
        return outcome_from_proto(reply.outcome)

    def add_remote_log_segment_metadata_batch(
        self, additions: Sequence[SegmentAddition]
    ) -> list[AddOutcome]:
        request = pb.AddRemoteLogSegmentMetadataBatchRequest(
            adds=[addition_to_proto(item) for item in additions]
        )
        method = self._stub.AddRemoteLogSegmentMetadataBatch
        reply = call_once(method, request, self._peer, BULK_TIMEOUT_S)
        return [add_outcome_from_proto(outcome) for outcome in reply.outcomes]

    def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        request = pb.UpdateRemoteLogSegmentMetadataRequest(
            update=update_to_proto(update), context=context_to_proto(context)
        )
        reply = call_once(self._stub.UpdateRemoteLogSegmentMetadata, request, self._peer)
        return outcome_from_proto(reply.outcome)

    def update_remote_log_segment_metadata_batch(
        self, updates: Sequence[SegmentUpdate]
    ) -> list[UpdateOutcome]:
        request = pb.UpdateRemoteLogSegmentMetadataBatchRequest(
            updates=[segment_update_to_proto(item) for item in updates]
        )
        method = self._stub.UpdateRemoteLogSegmentMetadataBatch
        reply = call_once(method, request, self._peer, BULK_TIMEOUT_S)
        return [update_outcome_from_proto(outcome) for outcome in reply.outcomes]
