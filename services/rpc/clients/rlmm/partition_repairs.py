"""RLMM over gRPC: what puts a partition right by hand, and what was lost for good."""

from services.api.calls import NO_CONTEXT, MutationContext, MutationOutcome
from services.api.ids import TopicIdPartition
from services.api.offset_gaps import OffsetGap
from services.rpc.clients.calls import call_once
from services.rpc.clients.rlmm.calling import CallsRlmm
from services.rpc.converters.offset_gaps import gap_to_proto
from services.rpc.converters.shared import (
    context_to_proto,
    outcome_from_proto,
    topic_id_partition_to_proto,
)
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb


class PartitionRepairsClient(CallsRlmm):
    """Satisfies services.api.partition_repairs.PartitionRepairs."""

    def record_gap(
        self,
        topic_id_partition: TopicIdPartition,
        gap: OffsetGap,
        broker_id: int,
        context: MutationContext = NO_CONTEXT,
    ) -> MutationOutcome:
        request = pb.RecordGapRequest(
            topic_id_partition=topic_id_partition_to_proto(topic_id_partition),
            gap=gap_to_proto(gap),
            broker_id=broker_id,
            context=context_to_proto(context),
        )
        reply = call_once(self._stub.RecordGap, request, self._peer)
        return outcome_from_proto(reply.outcome)

    def undelete_partition(
        self, topic_id_partition: TopicIdPartition, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        request = pb.UndeletePartitionRequest(
            topic_id_partition=topic_id_partition_to_proto(topic_id_partition),
            context=context_to_proto(context),
        )
        reply = call_once(self._stub.UndeletePartition, request, self._peer)
        return outcome_from_proto(reply.outcome)

    def reset_leader_epoch(
        self,
        topic_id_partition: TopicIdPartition,
        leader_epoch: int | None,
        context: MutationContext = NO_CONTEXT,
    ) -> MutationOutcome:
        request = pb.ResetLeaderEpochRequest(
            topic_id_partition=topic_id_partition_to_proto(topic_id_partition),
            leader_epoch=leader_epoch,
            context=context_to_proto(context),
        )
        reply = call_once(self._stub.ResetLeaderEpoch, request, self._peer)
        return outcome_from_proto(reply.outcome)
