"""RLMM on the wire: which partitions there are, their state and their audit trail."""

import grpc

from services.rlmm.serving.serves_rlmm import ServesRlmm, partition_of
from services.rpc.converters.batches import indexed_partitions_from_proto
from services.rpc.converters.enums import partition_delete_state
from services.rpc.converters.events import event_page_to_proto, event_query_from_proto
from services.rpc.converters.metadata import partition_page_to_proto
from services.rpc.converters.partition_state import state_to_proto
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb


class PartitionQueriesServicer(ServesRlmm):
    """Serves services.api.partition_queries.PartitionQueries."""

    def GetPartitionState(
        self, request: pb.GetPartitionStateRequest, context: grpc.ServicerContext
    ) -> pb.GetPartitionStateResponse:
        return state_to_proto(
            self._manager.partition_state(partition_of(request.topic_id_partition))
        )

    def ListPartitions(
        self, request: pb.ListPartitionsRequest, context: grpc.ServicerContext
    ) -> pb.ListPartitionsResponse:
        states = request.delete_states
        page = self._manager.list_partitions(
            topic=request.topic,
            delete_states=[partition_delete_state.from_proto(s, "delete_states") for s in states],
            cluster_id=request.cluster_id,
            page_size=request.page_size,
            page_token=request.page_token,
        )
        return partition_page_to_proto(page)

    def GetPartitionRevisions(
        self, request: pb.GetPartitionRevisionsRequest, context: grpc.ServicerContext
    ) -> pb.GetPartitionRevisionsResponse:
        partitions = indexed_partitions_from_proto(request.partitions, "partitions")
        revisions = self._manager.partition_revisions(partitions)
        return pb.GetPartitionRevisionsResponse(revisions=revisions)

    def ListEvents(
        self, request: pb.ListEventsRequest, context: grpc.ServicerContext
    ) -> pb.ListEventsResponse:
        page = self._manager.list_events(
            event_query_from_proto(request),
            page_size=request.page_size,
            page_token=request.page_token,
        )
        return event_page_to_proto(page)

    def IsReady(
        self, request: pb.IsReadyRequest, context: grpc.ServicerContext
    ) -> pb.IsReadyResponse:
        ready = self._manager.is_ready(partition_of(request.topic_id_partition))
        return pb.IsReadyResponse(ready=ready)
