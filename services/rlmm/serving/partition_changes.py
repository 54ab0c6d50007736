"""RLMM on the wire: who leads a partition, what its leader reports, and its end."""

import grpc

from services.api.validation import within
from services.rlmm.serving.serves_rlmm import ServesRlmm, partition_of
from services.rpc.converters.metadata import leaderships_from_proto, partitions_from_proto
from services.rpc.converters.partition_state import report_outcome_to_proto, reports_from_proto
from services.rpc.converters.shared import (
    context_from_proto,
    outcome_to_proto,
    partition_delete_from_proto,
)
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb


class PartitionChangesServicer(ServesRlmm):
    """Serves services.api.partition_changes.PartitionChanges."""

    def OnPartitionLeadershipChanges(
        self, request: pb.OnPartitionLeadershipChangesRequest, context: grpc.ServicerContext
    ) -> pb.OnPartitionLeadershipChangesResponse:
        leaders = leaderships_from_proto(request.leaders, "leaders")
        followers = leaderships_from_proto(request.followers, "followers")
        cluster_id = request.cluster_id if request.HasField("cluster_id") else None
        self._manager.on_partition_leadership_changes(
            leaders, followers, request.broker_id, cluster_id
        )
        return pb.OnPartitionLeadershipChangesResponse()

    def OnStopPartitions(
        self, request: pb.OnStopPartitionsRequest, context: grpc.ServicerContext
    ) -> pb.OnStopPartitionsResponse:
        partitions = partitions_from_proto(request.partitions, "partitions")
        self._manager.on_stop_partitions(partitions, request.broker_id)
        return pb.OnStopPartitionsResponse()

    def ReportPartitionState(
        self, request: pb.ReportPartitionStateRequest, context: grpc.ServicerContext
    ) -> pb.ReportPartitionStateResponse:
        outcomes = self._manager.report_partition_state(reports_from_proto(request.reports))
        return pb.ReportPartitionStateResponse(
            outcomes=[report_outcome_to_proto(outcome) for outcome in outcomes]
        )

    def RaiseLogStartOffset(
        self, request: pb.RaiseLogStartOffsetRequest, context: grpc.ServicerContext
    ) -> pb.RaiseLogStartOffsetResponse:
        with within("context"):
            why = context_from_proto(request.context)
        outcome = self._manager.raise_log_start_offset(
            partition_of(request.topic_id_partition), request.log_start_offset, why
        )
        return pb.RaiseLogStartOffsetResponse(outcome=outcome_to_proto(outcome))

    def PutRemotePartitionDeleteMetadata(
        self, request: pb.PutRemotePartitionDeleteMetadataRequest, context: grpc.ServicerContext
    ) -> pb.PutRemotePartitionDeleteMetadataResponse:
        with within("metadata"):
            metadata = partition_delete_from_proto(request.metadata)
        with within("context"):
            why = context_from_proto(request.context)
        outcome = self._manager.put_remote_partition_delete_metadata(metadata, why)
        return pb.PutRemotePartitionDeleteMetadataResponse(outcome=outcome_to_proto(outcome))
