"""Run a proxy that counts HTTP requests and applies the faults of a test."""

import socket
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from itertools import chain
from typing import BinaryIO

from tests.harness.faults import (
    Answer,
    BlackHole,
    Delay,
    Direction,
    Ending,
    Etag,
    Fault,
    FaultError,
    HalfClose,
    Late,
    Padding,
    Reset,
    Stall,
    Truncate,
    through,
)
from tests.harness.http_messages import (
    Head,
    ends_connection,
    first_bytes,
    read_head,
    request_body,
    response_body,
    send_all,
    with_header,
)
from tests.harness.proxy import Proxy, discard, end_sending, hang_up, reset

_KEPT_REQUESTS = 100_000
_PIECE_BYTES = 65_536
_LOOK_EVERY_S = 0.02


@dataclass(frozen=True)
class Request:
    """A request that the server or a fault answered.

    Attributes:
        status: what the client got.
        size_bytes: of the response's content, as its head says; 0 if it does not.
    """

    operation: str
    method: str
    target: str
    status: int
    size_bytes: int = 0


def path_of(method: str, target: str) -> str:
    """Return the simplest name of an operation."""
    return f"{method} {target.partition('?')[0]}"


class HttpProxy(Proxy):
    """Relays HTTP/1.1 requests, one after another on each connection, and keeps a list of them.

    Supports neither pipelining nor "Expect: 100-continue".
    """

    def __init__(
        self, upstream: str, operation: Callable[[str, str], str] = path_of, seed: int = 0
    ) -> None:
        """Create a proxy; `operation` names a request by method and target, for counts and
        faults.
        """
        super().__init__(upstream, seed)
        self._operation = operation
        self._requests: deque[Request] = deque(maxlen=_KEPT_REQUESTS)
        self._asked: deque[str] = deque(maxlen=_KEPT_REQUESTS)

    @property
    def requests(self) -> list[Request]:
        with self._lock:
            return list(self._requests)

    @property
    def asked(self) -> list[str]:
        """Return the operations of all received requests, in order, answered or not."""
        with self._lock:
            return list(self._asked)

    def counts(self) -> Counter[str]:
        """Return the number of answered requests of each operation."""
        return Counter(request.operation for request in self.requests)

    def forget_requests(self) -> None:
        with self._lock:
            self._requests.clear()
            self._asked.clear()

    def _relay(self, client: socket.socket, server: socket.socket) -> None:
        try:
            with client.makefile("rb") as from_client, server.makefile("rb") as from_server:
                while (request := read_head(from_client)) is not None:
                    fault = self._fault_for(request)
                    if isinstance(fault, Delay):
                        self._wait(fault.delay_ms / 1000)
                    if isinstance(fault, BlackHole):
                        discard(client)
                        return
                    if isinstance(fault, Late):
                        content = b"".join(request_body(request, from_client))
                        hang_up(client)
                        self._land_late(request, content, server, from_server, fault)
                        return
                    if isinstance(fault, Answer):
                        _skip_body(request, from_client)
                        self._note(request, fault.status)
                        client.sendall(_answer(fault, request.method))
                        continue
                    self._send_request(request, from_client, server, fault)
                    response = _final_head(from_server, client)
                    size_bytes = int(response.headers.get("content-length", 0))
                    self._note(request, response.status, size_bytes)
                    body = response_body(response, request.method, from_server)
                    self._send_response(response, body, client, fault)
                    if ends_connection(response, request.method):
                        return
        except FaultError as e:
            _end(e.ending, client, server)

    def _fault_for(self, request: Head) -> Fault | None:
        operation = self._operation(request.method, request.target)
        fault = self.faults.take(operation)
        with self._lock:
            self._asked.append(operation)
        return fault

    def _land_late(
        self,
        request: Head,
        content: bytes,
        server: socket.socket,
        from_server: BinaryIO,
        fault: Late,
    ) -> None:
        fault.taken.set()
        while not fault.let.is_set():
            self._wait(_LOOK_EVERY_S)
            if self._left.is_set():
                return
        server.sendall(request.raw + content)
        response = read_head(from_server)
        if response is None:
            raise ConnectionError("the server closed without a response")
        self._note(request, response.status)
        fault.done.set()

    def _send_request(
        self, request: Head, from_client: BinaryIO, server: socket.socket, fault: Fault | None
    ) -> None:
        _raise_if_before_head(fault, Direction.REQUEST)
        server.sendall(request.raw)
        send = through(fault, Direction.REQUEST, server.sendall, self._wait)
        send_all(request_body(request, from_client), send)

    def _send_response(
        self, head: Head, body: Iterator[bytes], client: socket.socket, fault: Fault | None
    ) -> None:
        _raise_if_before_head(fault, Direction.RESPONSE)
        if isinstance(fault, Truncate):
            head, body = _truncated(head, body, fault.after_bytes)
        if isinstance(fault, Etag):
            head = with_header(head, "ETag", fault.etag)
        if isinstance(fault, Padding):
            head, body = _padded(head, body, fault.content)
        client.sendall(head.raw)
        send_all(body, through(fault, Direction.RESPONSE, client.sendall, self._wait))

    def _note(self, request: Head, status: int, size_bytes: int = 0) -> None:
        method, target = request.method, request.target
        noted = Request(self._operation(method, target), method, target, status, size_bytes)
        with self._lock:
            self._requests.append(noted)


def _final_head(from_server: BinaryIO, client: socket.socket) -> Head:
    """Pass interim (1xx) responses on, and return the head of the final one."""
    while True:
        head = read_head(from_server)
        if head is None:
            raise ConnectionError("the server closed without a response")
        if head.status >= HTTPStatus.OK:
            return head
        client.sendall(head.raw)


def _raise_if_before_head(fault: Fault | None, direction: Direction) -> None:
    if isinstance(fault, Ending) and fault.direction is direction and fault.after_bytes is None:
        raise FaultError(fault)


def _truncated(head: Head, body: Iterator[bytes], size: int) -> tuple[Head, Iterator[bytes]]:
    """Return the same response with a shorter body; one without a length stays unchanged."""
    if "content-length" not in head.headers:
        return head, body
    whole = int(head.headers["content-length"])
    return with_header(head, "Content-Length", str(min(size, whole))), first_bytes(body, size)


def _padded(head: Head, body: Iterator[bytes], content: bytes) -> tuple[Head, Iterator[bytes]]:
    """Return the same response with `content` before its body."""
    if "content-length" in head.headers:
        size_bytes = int(head.headers["content-length"]) + len(content)
        return with_header(head, "Content-Length", str(size_bytes)), chain([content], body)
    chunk = f"{len(content):x}\r\n".encode() + content + b"\r\n"
    return head, chain([chunk], body)


def _end(ending: Ending, client: socket.socket, server: socket.socket) -> None:
    match ending:
        case Reset():
            reset(client)
            reset(server)
        case Stall():
            discard(client)
        case HalfClose(direction=Direction.RESPONSE):
            end_sending(client)
            discard(client)
        case HalfClose():
            end_sending(server)
            send_all(iter(lambda: server.recv(_PIECE_BYTES), b""), client.sendall)
            hang_up(client)
        case _:
            hang_up(client)
            hang_up(server)


def _skip_body(request: Head, from_client: BinaryIO) -> None:
    for _ in request_body(request, from_client):
        pass


def _answer(fault: Answer, method: str) -> bytes:
    """Build a response of our own."""
    phrase = HTTPStatus(fault.status).phrase
    busy = fault.status == HTTPStatus.SERVICE_UNAVAILABLE
    code = "SlowDown" if busy else phrase.replace(" ", "")
    error = f"<Error><Code>{code}</Code><Message>made up by a test</Message></Error>"
    body = (fault.page or error).encode()
    kind = fault.kind or ("text/html" if fault.page else "application/xml")
    head = f"HTTP/1.1 {fault.status} {phrase}\r\nContent-Type: {kind}\r\n"
    if fault.location:
        head += f"Location: {fault.location}\r\n"
    if fault.etag:
        head += f"ETag: {fault.etag}\r\n"
    length = f"Content-Length: {len(body)}\r\n\r\n"
    return (head + length).encode() + (b"" if method == "HEAD" else body)
