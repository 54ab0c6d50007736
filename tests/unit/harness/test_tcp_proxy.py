import socket
from collections.abc import Iterator
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Thread

import pytest

from tests.harness.faults import BlackHole, Corrupt, Cut, Direction, HalfClose, Reset, Stall
from tests.harness.proxy import TcpProxy, discard


class Echo(BaseRequestHandler):
    def handle(self) -> None:
        self.request.settimeout(10)
        try:
            while data := self.request.recv(65_536):
                self.request.sendall(data)
        except ConnectionError:
            return


@pytest.fixture
def proxy() -> Iterator[TcpProxy]:
    with ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        server.block_on_close = False
        thread = Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        with TcpProxy(f"127.0.0.1:{server.server_address[1]}") as proxy:
            yield proxy
        server.shutdown()
        thread.join()


def connect(proxy: TcpProxy) -> socket.socket:
    host, _, port = proxy.address.partition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def test_a_connection_ends_after_exactly_so_many_bytes(proxy: TcpProxy) -> None:
    proxy.faults.add(Cut(3, Direction.RESPONSE))
    with connect(proxy) as client, client.makefile("rb") as answers:
        client.sendall(b"ping")
        assert answers.read() == b"pin"


def test_only_the_connections_asked_for_are_cut(proxy: TcpProxy) -> None:
    proxy.faults.add(Cut(0, Direction.REQUEST))
    with connect(proxy) as first:
        first.sendall(b"ping")
        assert first.recv(4) == b""
    with connect(proxy) as second:
        second.sendall(b"ping")
        assert second.recv(4) == b"ping"


def test_open_connections_end_on_demand(proxy: TcpProxy) -> None:
    with connect(proxy) as client:
        client.sendall(b"ping")
        client.recv(4)
        proxy.cut_connections()
        assert client.recv(4) == b""


@pytest.mark.parametrize("direction", Direction)
def test_a_connection_is_reset_after_so_many_bytes(proxy: TcpProxy, direction: Direction) -> None:
    proxy.faults.add(Reset(3, direction))
    with connect(proxy) as client:
        client.sendall(b"ping")
        with pytest.raises(ConnectionResetError):
            discard(client)


def test_a_black_hole_takes_bytes_and_gives_none(proxy: TcpProxy) -> None:
    proxy.faults.add(BlackHole())
    with connect(proxy) as client:
        client.sendall(b"ping")
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.recv(4)


def test_a_stalled_connection_stays_open_after_its_last_byte(proxy: TcpProxy) -> None:
    proxy.faults.add(Stall(3, Direction.RESPONSE))
    with connect(proxy) as client:
        client.sendall(b"ping")
        assert client.recv(4) == b"pin"
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.recv(4)


def test_a_half_closed_connection_still_takes_bytes(proxy: TcpProxy) -> None:
    proxy.faults.add(HalfClose(3, Direction.RESPONSE))
    with connect(proxy) as client, client.makefile("rb") as answers:
        client.sendall(b"ping")
        assert answers.read() == b"pin"
        client.sendall(b"pong")


def test_one_byte_is_changed(proxy: TcpProxy) -> None:
    proxy.faults.add(Corrupt(1, Direction.RESPONSE))
    with connect(proxy) as client, client.makefile("rb") as answers:
        client.sendall(b"ping")
        client.shutdown(socket.SHUT_WR)
        assert answers.read() == b"p\x96ng"
