"""RLMM over gRPC: who leads a partition, what its leader reports, and its end."""

from collections.abc import Sequence

from services.api.calls import NO_CONTEXT, MutationContext, MutationOutcome
from services.api.ids import TopicIdPartition
from services.api.partition_changes import PartitionLeadership, ReportOutcome
from services.api.partition_state import PartitionReport
from services.api.partitions import RemotePartitionDeleteMetadata
from services.rpc.clients.calls import call_once
from services.rpc.clients.rlmm.calling import BULK_TIMEOUT_S, CallsRlmm
from services.rpc.converters.metadata import leadership_to_proto
from services.rpc.converters.partition_state import report_outcome_from_proto, report_to_proto
from services.rpc.converters.shared import (
    context_to_proto,
    outcome_from_proto,
    partition_delete_to_proto,
    topic_id_partition_to_proto,
)
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb


class PartitionChangesClient(CallsRlmm):
    """Satisfies services.api.partition_changes.PartitionChanges."""

    def on_partition_leadership_changes(
        self,
        leaders: Sequence[PartitionLeadership],
        followers: Sequence[PartitionLeadership],
        broker_id: int,
        cluster_id: str | None = None,
    ) -> None:
        request = pb.OnPartitionLeadershipChangesRequest(
            leaders=[leadership_to_proto(leadership) for leadership in leaders],
            followers=[leadership_to_proto(leadership) for leadership in followers],
            broker_id=broker_id,
            cluster_id=cluster_id,
        )
        call_once(self._stub.OnPartitionLeadershipChanges, request, self._peer)

    def on_stop_partitions(self, partitions: Sequence[TopicIdPartition], broker_id: int) -> None:
        request = pb.OnStopPartitionsRequest(
            partitions=[topic_id_partition_to_proto(tp) for tp in partitions], broker_id=broker_id
        )
        call_once(self._stub.OnStopPartitions, request, self._peer)

    def report_partition_state(self, reports: Sequence[PartitionReport]) -> list[ReportOutcome]:
        request = pb.ReportPartitionStateRequest(
            reports=[report_to_proto(report) for report in reports]
        )
        method = self._stub.ReportPartitionState
        reply = call_once(method, request, self._peer, BULK_TIMEOUT_S)
        pairs = zip(reply.outcomes, reports, strict=True)
        return [report_outcome_from_proto(outcome, report) for outcome, report in pairs]

    def raise_log_start_offset(
        self,
        topic_id_partition: TopicIdPartition,
        log_start_offset: int,
        context: MutationContext = NO_CONTEXT,
    ) -> MutationOutcome:
        request = pb.RaiseLogStartOffsetRequest(
            topic_id_partition=topic_id_partition_to_proto(topic_id_partition),
            log_start_offset=log_start_offset,
            context=context_to_proto(context),
        )
        reply = call_once(self._stub.RaiseLogStartOffset, request, self._peer)
        return outcome_from_proto(reply.outcome)

    def put_remote_partition_delete_metadata(
        self, metadata: RemotePartitionDeleteMetadata, context: MutationContext = NO_CONTEXT
    ) -> MutationOutcome:
        request = pb.PutRemotePartitionDeleteMetadataRequest(
            metadata=partition_delete_to_proto(metadata), context=context_to_proto(context)
        )
        reply = call_once(self._stub.PutRemotePartitionDeleteMetadata, request, self._peer)
        return outcome_from_proto(reply.outcome)
