"""Call RemoteLogManager over gRPC."""

from collections.abc import Iterator, Sequence

import grpc

from services.api.offset_queries import (
    EpochAnswer,
    EpochQuery,
    OffsetAnswer,
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
from services.rpc.converters import log as convert
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
        message = convert.fetch_request_to_proto(request)
        for received in call_stream(self._fetch, message, self._peer, FETCH_TIMEOUT_S):
            yield received.part()

    def list_offsets(self, queries: OffsetQueries) -> list[OffsetAnswer]:
        request = convert.offset_queries_to_proto(queries)
        reply = call_once(self._stub.ListOffsets, request, self._peer, LIST_OFFSETS_TIMEOUT_S)
        return list(map(convert.offset_answer_from_proto, reply.answers))

    def offsets_for_leader_epochs(self, queries: tuple[EpochQuery, ...]) -> list[EpochAnswer]:
        messages = map(convert.epoch_query_to_proto, queries)
        request = pb.OffsetForLeaderEpochRequest(queries=messages)
        reply = call_once(self._stub.OffsetForLeaderEpoch, request, self._peer)
        return list(map(convert.epoch_answer_from_proto, reply.answers))

    def delete_records(self, requests: tuple[RecordsToDelete, ...]) -> list[RaisedLogStart]:
        request = pb.DeleteRecordsRequest(partitions=map(convert.deletion_to_proto, requests))
        reply = call_once(self._stub.DeleteRecords, request, self._peer, STOP_TIMEOUT_S)
        return list(map(convert.raised_from_proto, reply.answers))

    def build_remote_log_aux_state(self, query: AuxStateQuery) -> RemoteLogAuxState:
        message, method = convert.aux_state_query_to_proto(query), self._stub.BuildRemoteLogAuxState
        return convert.aux_state_from_proto(
            call_stream(method, message, self._peer, FETCH_TIMEOUT_S)
        )

    def describe_partitions(
        self, topics: Sequence[str] = (), *, page_size: int = 0, page_token: str = ""
    ) -> DescribePage:
        request = pb.DescribePartitionsRequest(
            topics=topics, page_size=page_size, page_token=page_token
        )
        return convert.describe_page_from_proto(
            call_once(self._stub.DescribePartitions, request, self._peer)
        )

    def copy_lag(self) -> CopyLag:
        reply = call_once(self._stub.GetCopyLag, pb.GetCopyLagRequest(), self._peer)
        return convert.copy_lag_from_proto(reply)

    def drain(self, *, cancel: bool = False) -> ActivePasses:
        reply = call_once(self._stub.Drain, pb.DrainRequest(cancel=cancel), self._peer)
        return ActivePasses(reply.active_copies, reply.active_deletions)

    def on_leadership_change(self, delta: LeadershipDelta) -> list[LifecycleOutcome]:
        request = convert.delta_to_proto(delta)
        reply = call_once(self._stub.OnLeadershipChange, request, self._peer)
        return [outcome_of(status) for status in reply.outcomes]

    def stop_partitions(self, stops: PartitionStops) -> list[LifecycleOutcome]:
        request = convert.stops_to_proto(stops)
        reply = call_once(self._stub.StopPartitions, request, self._peer, STOP_TIMEOUT_S)
        return [outcome_of(status) for status in reply.outcomes]


def _conforms(client: RemoteLogManagerClient) -> ReplicaService:
    return client
