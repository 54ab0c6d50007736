"""Call RemoteLogManager over gRPC."""

from collections.abc import Iterator, Sequence

import grpc

from services.api.remote_log_manager import (
    DescribePage,
    FetchPart,
    FetchRequest,
    LeadershipDelta,
    LifecycleOutcome,
    PartitionStops,
    RemoteLogManager,
)
from services.rpc.client.calls import call_once, call_stream
from services.rpc.client.channel import peer_of
from services.rpc.converters.log import (
    delta_to_proto,
    describe_page_from_proto,
    fetch_part_from_proto,
    fetch_request_to_proto,
    stops_to_proto,
)
from services.rpc.statuses import outcome_of
from tieredstorage.v1 import remote_log_manager_pb2 as pb
from tieredstorage.v1 import remote_log_manager_pb2_grpc as pb_grpc

# For the next part.
FETCH_TIMEOUT_S = 300.0

# RLM marks all segments of a large partition that is no longer tiered.
STOP_TIMEOUT_S = 300.0


class RemoteLogManagerClient:
    """Implement RemoteLogManager by calls to a server. Thread-safe."""

    def __init__(self, channel: grpc.Channel, peer: str) -> None:
        self._stub = pb_grpc.RemoteLogManagerStub(channel)
        self._peer = peer_of("rlm", channel, peer)

    def fetch(self, request: FetchRequest) -> Iterator[FetchPart]:
        message = fetch_request_to_proto(request)
        for response in call_stream(self._stub.Fetch, message, self._peer, FETCH_TIMEOUT_S):
            yield fetch_part_from_proto(response)

    def describe_partitions(
        self, topics: Sequence[str] = (), *, page_size: int = 0, page_token: str = ""
    ) -> DescribePage:
        request = pb.DescribePartitionsRequest(
            topics=topics, page_size=page_size, page_token=page_token
        )
        return describe_page_from_proto(
            call_once(self._stub.DescribePartitions, request, self._peer)
        )

    def on_leadership_change(self, delta: LeadershipDelta) -> list[LifecycleOutcome]:
        request = delta_to_proto(delta)
        reply = call_once(self._stub.OnLeadershipChange, request, self._peer)
        return [outcome_of(status) for status in reply.outcomes]

    def stop_partitions(self, stops: PartitionStops) -> list[LifecycleOutcome]:
        request = stops_to_proto(stops)
        reply = call_once(self._stub.StopPartitions, request, self._peer, STOP_TIMEOUT_S)
        return [outcome_of(status) for status in reply.outcomes]


def _conforms(client: RemoteLogManagerClient) -> RemoteLogManager:
    return client
