"""RLMM on the wire: what puts a partition right by hand, and what was lost for good."""

import grpc

from services.api.validation import within
from services.rlmm.serving.serves_rlmm import ServesRlmm, partition_of
from services.rpc.converters.offset_gaps import gap_from_proto
from services.rpc.converters.shared import context_from_proto, outcome_to_proto, require_set
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb


class PartitionRepairsServicer(ServesRlmm):
    """Serves services.api.partition_repairs.PartitionRepairs."""

    def RecordGap(
        self, request: pb.RecordGapRequest, context: grpc.ServicerContext
    ) -> pb.RecordGapResponse:
        require_set(request, "gap")
        with within("gap"):
            gap = gap_from_proto(request.gap)
        with within("context"):
            why = context_from_proto(request.context)
        tp = partition_of(request.topic_id_partition)
        outcome = self._manager.record_gap(tp, gap, request.broker_id, why)
        return pb.RecordGapResponse(outcome=outcome_to_proto(outcome))

    def UndeletePartition(
        self, request: pb.UndeletePartitionRequest, context: grpc.ServicerContext
    ) -> pb.UndeletePartitionResponse:
        with within("context"):
            why = context_from_proto(request.context)
        tp = partition_of(request.topic_id_partition)
        outcome = self._manager.undelete_partition(tp, why)
        return pb.UndeletePartitionResponse(outcome=outcome_to_proto(outcome))

    def ResetLeaderEpoch(
        self, request: pb.ResetLeaderEpochRequest, context: grpc.ServicerContext
    ) -> pb.ResetLeaderEpochResponse:
        with within("context"):
            why = context_from_proto(request.context)
        tp = partition_of(request.topic_id_partition)
        epoch = request.leader_epoch if request.HasField("leader_epoch") else None
        outcome = self._manager.reset_leader_epoch(tp, epoch, why)
        return pb.ResetLeaderEpochResponse(outcome=outcome_to_proto(outcome))
