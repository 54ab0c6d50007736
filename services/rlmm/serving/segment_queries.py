"""RLMM on the wire: which segments there are, by offset, by id, in lists and in bulk."""

from collections.abc import Iterator

import grpc

from services.rlmm.serving.serves_rlmm import ServesRlmm, partition_of
from services.rpc.converters.batches import (
    ids_from_proto,
    lookup_outcomes_to_proto,
    lookups_from_proto,
)
from services.rpc.converters.bulk import scan_from_proto, segment_batch_to_proto
from services.rpc.converters.enums import retention_owner, segment_state
from services.rpc.converters.metadata import segment_page_to_proto
from services.rpc.converters.shared import metadata_to_proto
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb


class SegmentQueriesServicer(ServesRlmm):
    """Serves services.api.segment_queries.SegmentQueries."""

    def GetRemoteLogSegmentMetadata(
        self, request: pb.GetRemoteLogSegmentMetadataRequest, context: grpc.ServicerContext
    ) -> pb.GetRemoteLogSegmentMetadataResponse:
        found = self._manager.remote_log_segment_metadata(
            partition_of(request.topic_id_partition), request.epoch_for_offset, request.offset
        )
        return pb.GetRemoteLogSegmentMetadataResponse(
            metadata=metadata_to_proto(found.value) if found.value else None,
            revision=found.revision,
        )

    def GetRemoteLogSegmentMetadataBatch(
        self, request: pb.GetRemoteLogSegmentMetadataBatchRequest, context: grpc.ServicerContext
    ) -> pb.GetRemoteLogSegmentMetadataBatchResponse:
        lookups = lookups_from_proto(request.lookups)
        outcomes = self._manager.remote_log_segment_metadata_batch(lookups)
        return lookup_outcomes_to_proto(outcomes)

    def GetRemoteLogSegmentMetadataById(
        self, request: pb.GetRemoteLogSegmentMetadataByIdRequest, context: grpc.ServicerContext
    ) -> pb.GetRemoteLogSegmentMetadataByIdResponse:
        found = self._manager.remote_log_segment_metadata_by_id(
            partition_of(request.topic_id_partition), ids_from_proto(request.ids)
        )
        return pb.GetRemoteLogSegmentMetadataByIdResponse(
            segments=[metadata_to_proto(segment) for segment in found.value],
            revision=found.revision,
        )

    def GetNextSegmentWithTxnIndex(
        self, request: pb.GetNextSegmentWithTxnIndexRequest, context: grpc.ServicerContext
    ) -> pb.GetNextSegmentWithTxnIndexResponse:
        found = self._manager.next_segment_with_txn_index(
            partition_of(request.topic_id_partition), request.epoch, request.offset
        )
        return pb.GetNextSegmentWithTxnIndexResponse(
            metadata=metadata_to_proto(found.value) if found.value else None,
            revision=found.revision,
        )

    def GetEarliestLogOffset(
        self, request: pb.GetEarliestLogOffsetRequest, context: grpc.ServicerContext
    ) -> pb.GetEarliestLogOffsetResponse:
        found = self._manager.earliest_log_offset(partition_of(request.topic_id_partition))
        return pb.GetEarliestLogOffsetResponse(earliest_offset=found.value, revision=found.revision)

    def GetHighestOffsetForEpoch(
        self, request: pb.GetHighestOffsetForEpochRequest, context: grpc.ServicerContext
    ) -> pb.GetHighestOffsetForEpochResponse:
        found = self._manager.highest_offset_for_epoch(
            partition_of(request.topic_id_partition), request.leader_epoch
        )
        return pb.GetHighestOffsetForEpochResponse(
            highest_offset=found.value, revision=found.revision
        )

    def GetRemoteLogSize(
        self, request: pb.GetRemoteLogSizeRequest, context: grpc.ServicerContext
    ) -> pb.GetRemoteLogSizeResponse:
        size = self._manager.remote_log_size(
            partition_of(request.topic_id_partition), request.leader_epoch
        )
        return pb.GetRemoteLogSizeResponse(size_bytes=size.value, revision=size.revision)

    def ListRemoteLogSegments(
        self, request: pb.ListRemoteLogSegmentsRequest, context: grpc.ServicerContext
    ) -> pb.ListRemoteLogSegmentsResponse:
        page = self._manager.list_remote_log_segments(
            partition_of(request.topic_id_partition),
            request.leader_epoch if request.HasField("leader_epoch") else None,
            states=[segment_state.from_proto(state, "states") for state in request.states],
            min_offset=request.min_offset if request.HasField("min_offset") else None,
            if_revision_not=(
                request.if_revision_not if request.HasField("if_revision_not") else None
            ),
            deletes_for=(
                retention_owner.from_proto(request.deletes_for, "deletes_for")
                if request.deletes_for
                else None
            ),
            page_size=request.page_size,
            page_token=request.page_token,
        )
        return segment_page_to_proto(page)

    def ScanRemoteLogSegments(
        self, request: pb.ScanRemoteLogSegmentsRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ScanRemoteLogSegmentsResponse]:
        for batch in self._manager.scan_remote_log_segments(scan_from_proto(request)):
            yield segment_batch_to_proto(batch)
