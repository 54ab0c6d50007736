"""A proxy that counts HTTP requests and does wrong what a test asks for."""

import socket
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from threading import Event
from typing import BinaryIO

from tests.harness.faults import Answer, Cut, Delay, Direction, Fault, cutting
from tests.harness.http_messages import (
    Head,
    Send,
    ends_connection,
    read_head,
    request_body,
    response_body,
    send_all,
)
from tests.harness.proxy import Proxy

_KEPT_REQUESTS = 100_000


@dataclass(frozen=True)
class Request:
    """One that was answered, by the server or by a fault; `status` is what the client got."""

    operation: str
    method: str
    target: str
    status: int


def path_of(method: str, target: str) -> str:
    """The plainest name of an operation."""
    return f"{method} {target.partition('?')[0]}"


class HttpProxy(Proxy):
    """Relays HTTP/1.1 requests, one after another on each connection, and keeps a list of them.

    It knows neither pipelining nor "Expect: 100-continue".
    """

    def __init__(
        self, upstream: str, operation: Callable[[str, str], str] = path_of, seed: int = 0
    ) -> None:
        """`operation` names a request by method and target, for counts and faults."""
        super().__init__(upstream, seed)
        self._operation = operation
        self._requests: deque[Request] = deque(maxlen=_KEPT_REQUESTS)

    @property
    def requests(self) -> list[Request]:
        with self._lock:
            return list(self._requests)

    def counts(self) -> Counter[str]:
        """How many requests of each operation were answered."""
        return Counter(request.operation for request in self.requests)

    def forget_requests(self) -> None:
        with self._lock:
            self._requests.clear()

    def _relay(self, client: socket.socket, server: socket.socket) -> None:
        with client.makefile("rb") as from_client, server.makefile("rb") as from_server:
            while (request := read_head(from_client)) is not None:
                operation = self._operation(request.method, request.target)
                fault = self.faults.take(operation)
                if isinstance(fault, Delay):
                    Event().wait(fault.delay_ms / 1000)
                if isinstance(fault, Answer):
                    _skip_body(request, from_client)
                    self._note(operation, request, fault.status)
                    client.sendall(_answer(fault.status, request.method))
                    continue
                _send_request(request, from_client, server, fault)
                response = _final_head(from_server, client)
                self._note(operation, request, response.status)
                body = response_body(response, request.method, from_server)
                send_all(body, _cut_if(fault, Direction.RESPONSE, client.sendall))
                if ends_connection(response, request.method):
                    return

    def _note(self, operation: str, request: Head, status: int) -> None:
        with self._lock:
            self._requests.append(Request(operation, request.method, request.target, status))


def _send_request(
    request: Head, from_client: BinaryIO, server: socket.socket, fault: Fault | None
) -> None:
    server.sendall(request.raw)
    send = _cut_if(fault, Direction.REQUEST, server.sendall)
    send_all(request_body(request, from_client), send)


def _final_head(from_server: BinaryIO, client: socket.socket) -> Head:
    """Pass heads on up to the one that is no interim (1xx) response."""
    while True:
        head = read_head(from_server)
        if head is None:
            raise ConnectionError("the server closed without a response")
        client.sendall(head.raw)
        if head.status >= HTTPStatus.OK:
            return head


def _cut_if(fault: Fault | None, direction: Direction, send: Send) -> Send:
    if isinstance(fault, Cut) and fault.direction is direction:
        return cutting(send, fault.after_bytes)
    return send


def _skip_body(request: Head, from_client: BinaryIO) -> None:
    for _ in request_body(request, from_client):
        pass


def _answer(status: int, method: str) -> bytes:
    """A response of our own, with the error body that S3 clients expect."""
    phrase = HTTPStatus(status).phrase
    code = "SlowDown" if status == HTTPStatus.SERVICE_UNAVAILABLE else phrase.replace(" ", "")
    body = f"<Error><Code>{code}</Code><Message>made up by a test</Message></Error>".encode()
    head = f"HTTP/1.1 {status} {phrase}\r\nContent-Type: application/xml\r\n"
    length = f"Content-Length: {len(body)}\r\n\r\n"
    return (head + length).encode() + (b"" if method == "HEAD" else body)
