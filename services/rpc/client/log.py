"""Call RemoteLogManager over gRPC."""

from collections.abc import Iterator

import grpc

from services.api.remote_log_manager import (
    FetchPart,
    FetchRequest,
    LeadershipDelta,
    LifecycleOutcome,
)
from services.api.replicas import AuxStateQuery, RemoteLogAuxState, ReplicaService
from services.rpc.client.calls import call_stream
from services.rpc.client.channel import peer_of
from services.rpc.client.contract import ContractClient, unary
from services.rpc.converters import log as convert
from services.rpc.statuses import outcome_of
from services.rpc.wire_parts import fetching_parts_method
from tieredstorage.v1 import remote_log_manager_pb2_grpc as pb_grpc

FETCH_TIMEOUT_S = 300.0
"""For the next part."""
STOP_TIMEOUT_S = 300.0
"""RLM marks all segments of a large partition that is no longer tiered."""
LIST_OFFSETS_TIMEOUT_S = 60.0
"""Beyond the most that RLM takes by default."""


class RemoteLogManagerClient(ContractClient):
    """Implement ReplicaService by calls to a server. Thread-safe."""

    def __init__(self, channel: grpc.Channel, peer: str) -> None:
        stub = pb_grpc.RemoteLogManagerStub(channel)
        super().__init__(stub, peer_of("rlm", channel, peer))
        self._fetch = fetching_parts_method(channel)

    def fetch(self, request: FetchRequest) -> Iterator[FetchPart]:
        message = convert.fetch_request_to_proto(request)
        for received in call_stream(self._fetch, message, self._peer, FETCH_TIMEOUT_S):
            yield received.part()

    list_offsets = unary(ReplicaService.list_offsets, LIST_OFFSETS_TIMEOUT_S)

    offsets_for_leader_epochs = unary(ReplicaService.offsets_for_leader_epochs)
    delete_records = unary(ReplicaService.delete_records, STOP_TIMEOUT_S)
    set_local_retention_owner = unary(ReplicaService.set_local_retention_owner, STOP_TIMEOUT_S)

    def build_remote_log_aux_state(self, query: AuxStateQuery) -> RemoteLogAuxState:
        message, method = convert.aux_state_query_to_proto(query), self._stub.BuildRemoteLogAuxState
        return convert.aux_state_from_proto(
            call_stream(method, message, self._peer, FETCH_TIMEOUT_S)
        )

    describe_partitions = unary(ReplicaService.describe_partitions)
    copy_lag = unary(ReplicaService.copy_lag)
    drain = unary(ReplicaService.drain)

    def on_leadership_change(self, delta: LeadershipDelta) -> list[LifecycleOutcome]:
        request = convert.delta_to_proto(delta)
        reply = self.call("OnLeadershipChange", request)
        return [outcome_of(status) for status in reply.outcomes]

    stop_partitions = unary(ReplicaService.stop_partitions, STOP_TIMEOUT_S)


def _conforms(client: RemoteLogManagerClient) -> ReplicaService:
    return client
