"""Test the metrics port of a service."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.request import urlopen

import pytest

from services.rpc.server.server import start_metrics


@pytest.fixture
def cleanup() -> Iterator[ExitStack]:
    with ExitStack() as cleanup:
        yield cleanup


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_metrics_are_served_beside_connections_that_do_nothing(
    cleanup: ExitStack, host: str
) -> None:
    address = start_metrics(f"{host}:0", cleanup)
    port = int(address.rpartition(":")[2])
    for _ in range(20):
        idle = cleanup.enter_context(socket.create_connection((host.strip("[]"), port), 60))
        idle.sendall(b"GET /metr")
    with urlopen(f"http://{address}/metrics", timeout=60) as answer:
        assert "sediment_rpc_seconds" in str(answer.read(), "utf-8")


def test_the_server_ends_without_waiting_for_idle_connections() -> None:
    with ExitStack() as idle, ExitStack() as cleanup:
        port = int(start_metrics("127.0.0.1:0", cleanup).rpartition(":")[2])
        idle.enter_context(socket.create_connection(("127.0.0.1", port), 60))
        cleanup.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 60)


def test_a_port_that_is_taken_is_named(cleanup: ExitStack) -> None:
    address = start_metrics("127.0.0.1:0", cleanup)
    with pytest.raises(SystemExit, match=f"cannot listen on {address}: Address already in use"):
        start_metrics(address, cleanup)
