"""Test the metrics of a server's calls: in progress, waiting, and their limit."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from services.common.client_security import PLAINTEXT
from services.rpc.client.channel import open_channel
from services.rpc.server.server import Service, start_grpc
from tests.deep.test_server_idle_streams import PATIENT, SERVICE, Client, Streams, path
from tests.harness.eventually import eventually
from tests.harness.published import published

RUNNING = 4
WAITING = 3


@pytest.fixture
def service() -> Streams:
    return Streams()


@pytest.fixture
def client(service: Streams) -> Iterator[Client]:
    process = Service("test", SERVICE, service.add_to, lambda: None, lambda: None, 4)
    with ExitStack() as server:
        server.callback(service.release.set)
        address = start_grpc(process, PATIENT, server).address
        yield Client(server.enter_context(open_channel(address, PLAINTEXT)))


def state(kind: str) -> list[float]:
    names = ("in_progress", "waiting", "limit")
    return [published(f"sediment_rpc_calls_{name}", {"kind": kind}) for name in names]


def test_calls_are_published_while_they_run_and_while_they_wait(
    client: Client, service: Streams
) -> None:
    hold = client.channel.unary_unary(path("Hold"), None, None)
    calls = [hold.future(b"request", timeout=60) for _ in range(RUNNING + WAITING)]
    eventually(lambda: state("unary") == [RUNNING, WAITING, RUNNING])
    assert state("stream-out")[:2] == [0, 0]
    service.release.set()
    for call in calls:
        call.result()
    eventually(lambda: state("unary") == [0, 0, RUNNING])
    assert state("watch")[2] == 1
