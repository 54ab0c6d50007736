"""Call RemoteLogManager over gRPC."""

from collections.abc import Iterator, Sequence

import grpc

from services.api.offset_queries import (
    EpochAnswer,
    EpochQuery,
    FoundOffset,
    OffsetQueries,
    RaisedLogStart,
    RecordsToDelete,
)
from services.api.remote_log_manager import (
    ActivePasses,
    CopyLag,
    DescribePage,
    FetchPart,
    FetchRequest,
    LeadershipDelta,
    LifecycleOutcome,
    PartitionStops,
)
from services.api.replicas import AuxStateQuery, RemoteLogAuxState, ReplicaService
from services.rpc.client.calls import call_once, call_stream
from services.rpc.client.channel import peer_of
from services.rpc.converters.log import (
    aux_state_from_proto,
    aux_state_query_to_proto,
    copy_lag_from_proto,
    delta_to_proto,
    describe_page_from_proto,
    epoch_answers_from_proto,
    epoch_queries_to_proto,
    fetch_request_to_proto,
    found_offsets_from_proto,
    offset_queries_to_proto,
    raised_log_starts_from_proto,
    records_to_delete_to_proto,
    stops_to_proto,
)
from services.rpc.statuses import outcome_of
from services.rpc.wire_parts import fetching_parts_method
from tieredstorage.v1 import remote_log_manager_pb2 as pb
from tieredstorage.v1 import remote_log_manager_pb2_grpc as pb_grpc

# For the next part.
FETCH_TIMEOUT_S = 300.0

# RLM marks all segments of a large partition that is no longer tiered.
STOP_TIMEOUT_S = 300.0


# Beyond the most that RLM takes by default.
LIST_OFFSETS_TIMEOUT_S = 60.0


class RemoteLogManagerClient:
    """Implement ReplicaService by calls to a server. Thread-safe."""

    def __init__(self, channel: grpc.Channel, peer: str) -> None:
        self._stub = pb_grpc.RemoteLogManagerStub(channel)
        self._fetch = fetching_parts_method(channel)
        self._peer = peer_of("rlm", channel, peer)

    def fetch(self, request: FetchRequest) -> Iterator[FetchPart]:
        message = fetch_request_to_proto(request)
        for received in call_stream(self._fetch, message, self._peer, FETCH_TIMEOUT_S):
            yield received.part()

    def list_offsets(self, queries: OffsetQueries) -> list[FoundOffset]:
        request = offset_queries_to_proto(queries)
        reply = call_once(self._stub.ListOffsets, request, self._peer, LIST_OFFSETS_TIMEOUT_S)
        return found_offsets_from_proto(reply)

    def offsets_for_leader_epochs(self, queries: tuple[EpochQuery, ...]) -> list[EpochAnswer]:
        request = epoch_queries_to_proto(queries)
        reply = call_once(self._stub.OffsetForLeaderEpoch, request, self._peer)
        return epoch_answers_from_proto(reply)

    def delete_records(self, wanted: tuple[RecordsToDelete, ...]) -> list[RaisedLogStart]:
        request = records_to_delete_to_proto(wanted)
        reply = call_once(self._stub.DeleteRecords, request, self._peer, STOP_TIMEOUT_S)
        return raised_log_starts_from_proto(reply)

    def build_remote_log_aux_state(self, query: AuxStateQuery) -> RemoteLogAuxState:
        message, method = aux_state_query_to_proto(query), self._stub.BuildRemoteLogAuxState
        return aux_state_from_proto(call_stream(method, message, self._peer, FETCH_TIMEOUT_S))

    def describe_partitions(
        self, topics: Sequence[str] = (), *, page_size: int = 0, page_token: str = ""
    ) -> DescribePage:
        request = pb.DescribePartitionsRequest(
            topics=topics, page_size=page_size, page_token=page_token
        )
        return describe_page_from_proto(
            call_once(self._stub.DescribePartitions, request, self._peer)
        )

    def copy_lag(self) -> CopyLag:
        reply = call_once(self._stub.GetCopyLag, pb.GetCopyLagRequest(), self._peer)
        return copy_lag_from_proto(reply)

    def drain(self, *, cancel: bool = False) -> ActivePasses:
        reply = call_once(self._stub.Drain, pb.DrainRequest(cancel=cancel), self._peer)
        return ActivePasses(reply.active_copies, reply.active_deletions)

    def on_leadership_change(self, delta: LeadershipDelta) -> list[LifecycleOutcome]:
        request = delta_to_proto(delta)
        reply = call_once(self._stub.OnLeadershipChange, request, self._peer)
        return [outcome_of(status) for status in reply.outcomes]

    def stop_partitions(self, stops: PartitionStops) -> list[LifecycleOutcome]:
        request = stops_to_proto(stops)
        reply = call_once(self._stub.StopPartitions, request, self._peer, STOP_TIMEOUT_S)
        return [outcome_of(status) for status in reply.outcomes]


def _conforms(client: RemoteLogManagerClient) -> ReplicaService:
    return client
