"""Test that a call to which the client streams lasts as long as it makes progress."""

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from services.api.errors import InvalidRequestError, RetriableRemoteStorageError
from services.rpc.client.calls import call_with_stream
from services.rpc.client.timeouts import Source
from tests.harness.eventually import eventually
from tests.harness.served import served
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb
from tieredstorage.v1 import remote_log_metadata_manager_pb2_grpc as pb_grpc

NAME = "tieredstorage.v1.RemoteLogMetadataManager"
NEVER_S = 300.0


class Taker:
    """Returns the number of messages; refuses the one numbered `refuses`, or stalls before
    `stalls`.
    """

    def __init__(self) -> None:
        self.refuses = self.stalls = 0
        self.goes_on = threading.Event()

    def take(
        self,
        request_iterator: Iterator[pb.ImportRemoteLogSegmentsRequest],
        context: grpc.ServicerContext,
    ) -> pb.ImportRemoteLogSegmentsResponse:
        number = 0
        for number, _ in enumerate(request_iterator, start=1):
            if number == self.refuses:
                raise InvalidRequestError(f"segments: message {number}")
            if number == self.stalls:
                self.goes_on.wait(NEVER_S)
        return pb.ImportRemoteLogSegmentsResponse(imported=number)


@pytest.fixture
def taker() -> Iterator[Taker]:
    made = Taker()
    yield made
    made.goes_on.set()


@pytest.fixture
def method(taker: Taker) -> Iterator[Any]:
    def add_to(server: grpc.Server) -> None:
        handler = grpc.stream_unary_rpc_method_handler(
            taker.take,
            pb.ImportRemoteLogSegmentsRequest.FromString,
            pb.ImportRemoteLogSegmentsResponse.SerializeToString,
        )
        handlers = {"ImportRemoteLogSegments": handler}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, handlers),))

    with served(add_to, NAME) as (channel, _):
        yield pb_grpc.RemoteLogMetadataManagerStub(channel).ImportRemoteLogSegments
        taker.goes_on.set()


def messages(count: int) -> Iterator[pb.ImportRemoteLogSegmentsRequest]:
    return iter([pb.ImportRemoteLogSegmentsRequest()] * count)


def test_all_messages_arrive(method: Any) -> None:
    assert call_with_stream(method, messages(1_000), "taker", NEVER_S).imported == 1_000


def test_a_refusal_ends_the_call_in_the_middle_of_an_endless_stream(
    method: Any, taker: Taker
) -> None:
    taker.refuses = 3
    endless = iter(pb.ImportRemoteLogSegmentsRequest, None)
    with pytest.raises(InvalidRequestError, match="segments: message 3"):
        call_with_stream(method, endless, "taker", NEVER_S)


def test_only_the_peers_time_counts_not_that_of_the_source() -> None:
    in_source: list[float] = []
    first, second = (pb.ImportRemoteLogSegmentsRequest() for _ in range(2))

    def items() -> Iterator[pb.ImportRemoteLogSegmentsRequest]:
        for item in (first, second):
            in_source.append(source.idle_s())
            yield item

    source = Source(items())
    taken = iter(source)
    assert next(taken) is first
    eventually(lambda: source.idle_s() > 0.0, deadline_ms=60_000)
    assert list(taken) == [second]
    eventually(lambda: source.idle_s() > 0.0, deadline_ms=60_000)
    assert in_source == [0.0, 0.0]


def test_a_peer_that_takes_nothing_more_is_abandoned(method: Any, taker: Taker) -> None:
    taker.stalls = 2
    with pytest.raises(RetriableRemoteStorageError, match=r"^taker: has made no progress"):
        call_with_stream(method, messages(10), "taker", 0.5)


def test_the_error_of_the_source_is_the_callers(method: Any) -> None:
    def broken() -> Iterator[pb.ImportRemoteLogSegmentsRequest]:
        yield from messages(2)
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        call_with_stream(method, broken(), "taker", NEVER_S)
