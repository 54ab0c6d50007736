"""Test the bound of unary calls: further ones are refused, and streams are still served."""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest
from prometheus_client import REGISTRY

from services.api.errors import ThrottledError
from services.rpc.server.server import Service, start_grpc
from tests.deep.test_server_idle_streams import (
    PATIENT,
    SERVICE,
    UNARY_CALLS,
    Client,
    Streams,
    path,
)
from tests.harness.eventually import eventually
from tests.harness.idle_streams import idle_peer

RUNNING = 4


@pytest.fixture
def service() -> Streams:
    return Streams()


@pytest.fixture
def server(service: Streams) -> Iterator[ExitStack]:
    """Provide the resources of a server, which drains when they are closed."""
    with ExitStack() as server:
        server.callback(service.release.set)
        yield server


@pytest.fixture
def address(service: Streams, server: ExitStack) -> str:
    process = Service("test", SERVICE, service.add_to, lambda: None, lambda: None, 4)
    return start_grpc(process, PATIENT, server).address


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    # Our own channel has several connections, and calls of two of them have no order.
    with grpc.insecure_channel(address) as channel:
        client = Client(channel)
        # Calls that wait for the connection have no order.
        assert client.unary("LookUp") == b"found"
        yield client


def holds(client: Client, count: int, timeout_s: float = 60) -> list[Any]:
    """Start calls that last until they are released or no client waits for them."""
    hold = client.channel.unary_unary(path("Hold"), None, None)
    return [hold.future(b"request", timeout=timeout_s) for _ in range(count)]


def fill(client: Client, service: Streams, timeout_s: float = 60) -> list[Any]:
    """Occupy all room for unary calls, with calls that last as long as their client."""
    calls = holds(client, UNARY_CALLS, timeout_s)
    for _ in range(RUNNING):
        assert service.held.acquire(timeout=30)
    eventually(lambda: is_refused(client))
    assert last(calls)
    return calls


def last(calls: list[Any]) -> bool:
    return not any(call.done() for call in calls)


def is_refused(client: Client) -> bool:
    """Return whether a call is refused instead of queued."""
    (call,) = holds(client, 1, timeout_s=0.5)
    code = call.code()
    assert code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED)
    return code is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.deep
def test_a_thousand_unary_calls_take_the_room_of_their_kind_and_no_more(
    address: str, client: Client
) -> None:
    with idle_peer(address, 20) as peer:
        peer.open_calls(path("Hold"), 1000, b"request")
        eventually(lambda: peer.ended == 1000 - UNARY_CALLS, 30_000)
        for _ in range(20):
            assert client.copy(b"copied") == b"6"
        assert peer.ended == 1000 - UNARY_CALLS


def test_a_refused_unary_call_gets_the_reason_and_is_logged_and_counted(
    client: Client, service: Streams, caplog: pytest.LogCaptureFixture
) -> None:
    # One that no other test has refused: of each method the lines are bounded.
    method = path("Parsed")

    def counted() -> float:
        labels = {"method": method, "code": "RESOURCE_EXHAUSTED"}
        return REGISTRY.get_sample_value("sediment_rpc_seconds_count", labels) or 0

    calls = fill(client, service)
    before = counted()
    with (
        caplog.at_level(logging.INFO, logger="sediment.rpc"),
        pytest.raises(
            ThrottledError,
            match=r"^too many concurrent unary calls \(limit 4\) and the queue is full; retry in a",
        ),
    ):
        client.unary("Parsed")
    (line,) = [r.__dict__ for r in caplog.records if r.__dict__.get("method") == method]
    assert line["code"] == "RESOURCE_EXHAUSTED"
    assert "127.0.0.1" in line["peer"]
    assert counted() == before + 1
    assert last(calls)


def cancel(calls: list[Any]) -> None:
    for call in calls:
        call.cancel()


def wait_for_deadlines(calls: list[Any]) -> None:
    for call in calls:
        assert call.code() is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize(
    ("end", "timeout_s"),
    [(cancel, 60), pytest.param(wait_for_deadlines, 3, marks=pytest.mark.deep)],
)
def test_cancelled_calls_release_their_places_once(
    client: Client, service: Streams, end: Callable[[list[Any]], None], timeout_s: float
) -> None:
    for _ in range(3):
        calls = fill(client, service, timeout_s)
        end(calls)
        eventually(lambda: not is_refused(client))
        # Those that were asked for only to see.
        while service.held.acquire(timeout=0.1):
            pass
    # And no more places than there are.
    assert last(fill(client, service))


def test_calls_that_wait_are_served_in_the_end(client: Client, service: Streams) -> None:
    calls = fill(client, service)
    service.release.set()
    assert [call.result(timeout=30) for call in calls] == [b"too late"] * len(calls)
    assert client.unary("LookUp") == b"found"


def test_a_call_that_leaves_while_it_waits_is_not_served(client: Client, service: Streams) -> None:
    calls = fill(client, service)
    calls[-1].cancel()
    service.release.set()
    assert [call.result(timeout=30) for call in calls[:-1]] == [b"too late"] * (len(calls) - 1)
    assert client.unary("LookUp") == b"found"
    for _ in range(len(calls) - 1 - RUNNING):
        assert service.held.acquire(timeout=30)
    assert not service.held.acquire(blocking=False)


def test_calls_that_wait_end_with_the_drain(
    client: Client, service: Streams, server: ExitStack
) -> None:
    calls = fill(client, service)
    drained = server.pop_all()
    drained.close()
    assert not any(call.code() is grpc.StatusCode.OK for call in calls[RUNNING:])
