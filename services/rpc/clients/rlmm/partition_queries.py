"""RLMM over gRPC: which partitions there are, their state and their audit trail."""

from collections.abc import Sequence

from services.api.calls import AtRevision
from services.api.errors import RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.partition_events import EventPage, EventQuery
from services.api.partition_queries import PartitionPage
from services.api.partition_state import PartitionState
from services.api.partitions import RemotePartitionDeleteState
from services.rpc.clients.calls import call_once
from services.rpc.clients.rlmm.calling import CallsRlmm
from services.rpc.converters.enums import partition_delete_state
from services.rpc.converters.events import event_page_from_proto, event_query_to_proto
from services.rpc.converters.metadata import partition_page_from_proto
from services.rpc.converters.partition_state import state_from_proto
from services.rpc.converters.shared import topic_id_partition_to_proto
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb


class PartitionQueriesClient(CallsRlmm):
    """Satisfies services.api.partition_queries.PartitionQueries."""

    def partition_state(self, topic_id_partition: TopicIdPartition) -> AtRevision[PartitionState]:
        request = pb.GetPartitionStateRequest(
            topic_id_partition=topic_id_partition_to_proto(topic_id_partition)
        )
        return state_from_proto(call_once(self._stub.GetPartitionState, request, self._peer))

    def list_partitions(
        self,
        *,
        topic: str = "",
        delete_states: Sequence[RemotePartitionDeleteState] = (),
        cluster_id: str = "",
        page_size: int = 0,
        page_token: str = "",
    ) -> PartitionPage:
        request = pb.ListPartitionsRequest(
            topic=topic,
            delete_states=[partition_delete_state.to_proto(state) for state in delete_states],
            cluster_id=cluster_id,
            page_size=page_size,
            page_token=page_token,
        )
        return partition_page_from_proto(call_once(self._stub.ListPartitions, request, self._peer))

    def partition_revisions(self, partitions: Sequence[TopicIdPartition]) -> list[int]:
        request = pb.GetPartitionRevisionsRequest(
            partitions=[topic_id_partition_to_proto(tp) for tp in partitions]
        )
        return list(call_once(self._stub.GetPartitionRevisions, request, self._peer).revisions)

    def list_events(
        self, query: EventQuery, *, page_size: int = 0, page_token: str = ""
    ) -> EventPage:
        request = event_query_to_proto(query, page_size, page_token)
        return event_page_from_proto(call_once(self._stub.ListEvents, request, self._peer))

    def is_ready(self, topic_id_partition: TopicIdPartition) -> bool:
        request = pb.IsReadyRequest(
            topic_id_partition=topic_id_partition_to_proto(topic_id_partition)
        )
        try:
            return call_once(self._stub.IsReady, request, self._peer).ready
        except RetriableRemoteStorageError:
            return False
