"""The metrics port beside peers that connect and do nothing."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from urllib.request import urlopen

import pytest

from services.rpc.server.metrics import THREADS, start_metrics_server
from tests.harness.eventually import eventually

HOST = "127.0.0.1"
IDLE = 200


@pytest.fixture
def port() -> Iterator[int]:
    port, stop = start_metrics_server(HOST, 0)
    yield port
    stop()


def scraped(port: int) -> str:
    with urlopen(f"http://{HOST}:{port}/metrics", timeout=60) as answer:
        return str(answer.read(), "utf-8")


def threads() -> int:
    return sum(thread.name.startswith("metrics_") for thread in threading.enumerate())


@pytest.mark.parametrize("begun", [b"", b"GET /metr", b"GET /metrics HTTP/1.1\r\nAccept: "])
def test_metrics_are_served_whatever_else_is_connected(port: int, begun: bytes) -> None:
    with ExitStack() as open_connections:
        for _ in range(IDLE):
            peer = open_connections.enter_context(socket.create_connection((HOST, port), 60))
            peer.sendall(begun)
        for _ in range(10):
            assert "sediment_rpc_seconds" in scraped(port)
        assert threads() <= THREADS


def test_the_oldest_connections_are_closed_and_the_newest_stay(port: int) -> None:
    with ExitStack() as open_connections:
        peers = [
            open_connections.enter_context(closing(socket.create_connection((HOST, port), 60)))
            for _ in range(THREADS + 1)
        ]
        assert peers[0].recv(1) == b""
        peers[-1].sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert peers[-1].recv(12) == b"HTTP/1.0 200"


def test_the_end_waits_for_no_peer() -> None:
    port, stop = start_metrics_server(HOST, 0)
    with ExitStack() as open_connections:
        for _ in range(THREADS):
            open_connections.enter_context(socket.create_connection((HOST, port), 60))
        eventually(lambda: threads() == THREADS)
        stop()
        assert threads() == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, port), 60)


def test_ipv6_is_served() -> None:
    port, stop = start_metrics_server("::1", 0)
    try:
        with urlopen(f"http://[::1]:{port}/metrics", timeout=60) as answer:
            assert answer.status == 200
    finally:
        stop()
