"""Run a proxy on the loopback that applies the faults of a test; http_proxy handles HTTP."""

import socket
import struct
from abc import ABC, abstractmethod
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Self

from tests.harness.faults import (
    BlackHole,
    Delay,
    Direction,
    FaultError,
    Faults,
    HalfClose,
    Reset,
    Stall,
    through,
)
from tests.harness.http_messages import Send

LOOPBACK = "127.0.0.1"
_BACKLOG = 128
_CONNECT_TIMEOUT_S = 10.0
_PIECE_BYTES = 65_536
_LINGER_NOT = struct.pack("ii", 1, 0)
"""SO_LINGER with which a closed socket sends RST."""


class Proxy(ABC):
    """Listens on a free port of the loopback while it is entered, and keeps that port."""

    def __init__(self, upstream: str, seed: int = 0) -> None:
        """Create a proxy; `upstream` is HOST:PORT and need not exist yet."""
        self.lead_to(upstream)
        self._lock = Lock()
        self._open: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self._port = 0
        self._left = Event()
        self.faults = Faults(seed)

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self._port}"

    def accept_connections(self) -> None:
        """Listen (again), on the same port as before."""
        listener = socket.create_server((LOOPBACK, self._port), backlog=_BACKLOG)
        self._port = listener.getsockname()[1]
        self._listener = listener
        Thread(target=self._accept, args=[listener], daemon=True).start()

    def refuse_connections(self) -> None:
        """Refuse new connections, like a stopped server; open connections stay."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            listener.close()

    def lead_to(self, upstream: str) -> None:
        """Serve later connections by another HOST:PORT; open ones stay where they are."""
        host, _, port = upstream.rpartition(":")
        self._upstream = (host, int(port))

    def cut_connections(self) -> None:
        """End every connection that is open now."""
        with self._lock:
            for one in self._open:
                hang_up(one)
            self._open.clear()

    def __enter__(self) -> Self:
        self.accept_connections()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self.refuse_connections()
        self.cut_connections()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                client, _ = listener.accept()
                with self._lock:  # open from now on, also while it has no server yet
                    self._open.add(client)
                Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._upstream, _CONNECT_TIMEOUT_S)
        except OSError:
            self._close(client)
            return
        server.settimeout(None)
        for one in (client, server):  # else a small body waits 40 ms for the head to be confirmed
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            if self._add_server(client, server):
                self._relay(client, server)
        except OSError:  # one side is gone, or a fault ends both
            hang_up(client)
            hang_up(server)
        finally:
            self._close(client, server)

    def _add_server(self, client: socket.socket, server: socket.socket) -> bool:
        """Return whether the client's connection was still open when it got a server."""
        with self._lock:
            is_open = client in self._open
            if is_open:
                self._open.add(server)
        return is_open

    def _close(self, *ours: socket.socket) -> None:
        with self._lock:
            self._open.difference_update(ours)
        for one in ours:
            one.close()

    def _wait(self, seconds: float) -> None:
        """Wait for a fault, no longer than this proxy lives."""
        self._left.wait(seconds)

    @abstractmethod
    def _relay(self, client: socket.socket, server: socket.socket) -> None: ...


class TcpProxy(Proxy):
    """Relays bytes both ways (PostgreSQL, gRPC).

    A connection takes its fault when it is made, as operation "connection".
    """

    def _relay(self, client: socket.socket, server: socket.socket) -> None:
        fault = self.faults.take("connection")
        if isinstance(fault, BlackHole):
            discard(client)
            return
        if isinstance(fault, Delay):
            self._wait(fault.delay_ms / 1000)
        to_server = through(fault, Direction.REQUEST, server.sendall, self._wait)
        to_client = through(fault, Direction.RESPONSE, client.sendall, self._wait)
        back = Thread(target=_pump, args=[server, client, to_client], daemon=True)
        back.start()
        _pump(client, server, to_server)
        back.join()


def _pump(source: socket.socket, sink: socket.socket, send: Send) -> None:
    try:
        while data := source.recv(_PIECE_BYTES):
            send(data)
        end_sending(sink)
    except FaultError as e:
        with suppress(OSError):
            _end(e, source, sink)
    except OSError:  # one side is gone
        hang_up(source)
        hang_up(sink)


def _end(error: FaultError, source: socket.socket, sink: socket.socket) -> None:
    match error.ending:
        case Reset():
            reset(source)
            reset(sink)
        case Stall():
            discard(source)
        case HalfClose():
            end_sending(sink)
            discard(source)
        case _:
            hang_up(source)
            hang_up(sink)


def discard(source: socket.socket) -> None:
    """Read until the end, and discard the bytes."""
    while source.recv(_PIECE_BYTES):
        pass


def end_sending(one: socket.socket) -> None:
    """End our sending in order, unless the connection is about to be reset."""
    linger = one.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, len(_LINGER_NOT))
    if linger != _LINGER_NOT:
        one.shutdown(socket.SHUT_WR)


def reset(one: socket.socket) -> None:
    """Make the close send RST, and wake the reader; neither sends anything before that."""
    with suppress(OSError):  # it has ended already
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        one.shutdown(socket.SHUT_RD)


def hang_up(one: socket.socket) -> None:
    """End a connection in order: sent bytes still arrive, and waiting threads wake."""
    with suppress(OSError):  # it has ended already
        one.shutdown(socket.SHUT_RDWR)
