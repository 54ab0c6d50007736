"""Provide a peer that opens calls and then does nothing: HTTP/2 by hand, without a thread per
call.
"""

import selectors
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Lock, Thread

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_FRAME_HEADER_BYTES = 9


class Connection:
    """One connection of HTTP/2, with TLS if a context is given."""

    def __init__(
        self, address: str, source: str = "127.0.0.1", tls: ssl.SSLContext | None = None
    ) -> None:
        host, _, port = address.rpartition(":")
        self.authority = address
        self.socket = socket.create_connection((host, int(port)), 30, (source, 0))
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=host)
        self.socket.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, b""))
        self.next_stream = 1
        self.ended: set[int] = set()
        self._unread = b""
        # Reads do not block, writes do: a socket has one mode for both.
        self._lock = Lock()

    def open_calls(self, path: str, count: int, message: bytes | None) -> None:
        block = _header_block(path, self.authority)
        frames = []
        for _ in range(count):
            frames.append(_frame(_HEADERS, _END_HEADERS, self.next_stream, block))
            if message is not None:
                body = struct.pack(">BI", 0, len(message)) + message
                frames.append(_frame(_DATA, 0, self.next_stream, body))
            self.next_stream += 2
        self.send(b"".join(frames))

    def send_resets(self, path: str, count: int) -> None:
        """Open calls and reset each at once."""
        block = _header_block(path, self.authority)
        frames = []
        for _ in range(count):
            frames.append(_frame(_HEADERS, _END_HEADERS, self.next_stream, block))
            frames.append(_frame(_RST_STREAM, 0, self.next_stream, struct.pack(">I", 8)))
            self.next_stream += 2
        self.send(b"".join(frames))

    def reset_all(self) -> None:
        """Reset every call that was opened."""
        opened = range(1, self.next_stream, 2)
        self.send(b"".join(_frame(_RST_STREAM, 0, each, struct.pack(">I", 8)) for each in opened))

    def send_pings(self, count: int) -> None:
        self.send(_frame(PING, 0, 0, bytes(8)) * count)

    def send(self, frames: bytes) -> None:
        with self._lock:
            self.socket.settimeout(30)
            self.socket.sendall(frames)

    def read_frames(self) -> Iterator[tuple[int, int, int]]:
        """Return type, flags and stream of the frames that are there; acknowledge settings.

        Raises:
            ConnectionError: the server has closed the connection.
        """
        self._unread += self._received()
        while len(self._unread) >= _FRAME_HEADER_BYTES:
            size = int.from_bytes(self._unread[:3], "big")
            if len(self._unread) < _FRAME_HEADER_BYTES + size:
                return
            kind, flags, stream = struct.unpack(">BBI", self._unread[3:_FRAME_HEADER_BYTES])
            self._unread = self._unread[_FRAME_HEADER_BYTES + size :]
            if kind == _SETTINGS and not flags & _ACK:
                self.send(_frame(_SETTINGS, _ACK, 0, b""))
            yield kind, flags, stream

    def _received(self) -> bytes:
        received = []
        with self._lock:
            self.socket.settimeout(0)
            with suppress(BlockingIOError, ssl.SSLWantReadError):
                while data := self.socket.recv(65_536):
                    received.append(data)
                if not received:
                    raise ConnectionError("the server has closed the connection")
        return b"".join(received)


class IdlePeer:
    """Opens calls on so many connections from `source`, an address of this machine."""

    def __init__(
        self, address: str, connections: int, source: str, tls: ssl.SSLContext | None = None
    ) -> None:
        self._connections = [Connection(address, source, tls) for _ in range(connections)]
        self._closing = Event()
        self._thread = Thread(target=self._read, name="idle-peer", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> int:
        """Return the number of calls that the server has ended: refused, or cancelled."""
        return sum(len(connection.ended) for connection in self._connections)

    def open_calls(self, method: str, count: int, message: bytes | None = None) -> None:
        """Open calls, spread over the connections; each sends `message` and no other."""
        share, rest = divmod(count, len(self._connections))
        for number, connection in enumerate(self._connections):
            connection.open_calls(method, share + (number < rest), message)

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        for connection in self._connections:
            connection.socket.close()

    def _read(self) -> None:
        with selectors.DefaultSelector() as selector:
            for connection in self._connections:
                selector.register(connection.socket, selectors.EVENT_READ, connection)
            while not self._closing.is_set():
                for key, _ in selector.select(timeout=0.1):
                    self._take(key.data)

    def _take(self, connection: Connection) -> None:
        with suppress(OSError):
            for kind, flags, stream in connection.read_frames():
                # Trailers end a call that gets a status, and a reset follows or comes alone.
                if kind == _RST_STREAM or (kind == _HEADERS and flags & _END_STREAM):
                    connection.ended.add(stream)


@contextmanager
def idle_peer(
    address: str,
    connections: int,
    source: str = "127.0.0.1",
    tls: ssl.SSLContext | None = None,
) -> Iterator[IdlePeer]:
    peer = IdlePeer(address, connections, source, tls)
    try:
        yield peer
    finally:
        peer.close()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _header_block(path: str, authority: str) -> bytes:
    """Encode HPACK without compression: each field is a literal that is not indexed."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": authority,
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )
