"""Run the console's HTTP server: its socket, TLS with client certificates, and its end."""

import asyncio
import signal
import socket
import ssl
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from services.api.errors import UnauthenticatedError
from services.common.addresses import split_address
from services.console.app import IDENTITY
from services.rpc.server.identity import identity_of_certificate
from services.rpc.server.transport import ServerContexts
from services.rpc.tls import ReloadedTls

MAX_CONNECTIONS = 128
MAX_HEADER_BYTES = 16 * 1024
_KEEP_ALIVE_S = 10
_HEADERS_S = 20.0
_ANSWER_S = 300.0
_END_S = 5


def listening_socket(address: str) -> socket.socket:
    """Listen on an address.

    Raises:
        SystemExit: it is in use, or does not belong to this machine.
    """
    host, port = split_address(address)
    try:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(resolved[0], socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(resolved[4])
        # A client of the URL may connect at once, and waits until the server accepts.
        bound.listen(MAX_CONNECTIONS)
    except OSError as e:
        raise SystemExit(
            f"cannot listen on {address}: {e.strerror}; set another listen address"
        ) from e
    return bound


def url_of(bound: socket.socket, *, has_tls: bool) -> str:
    """Return the URL of a bound socket."""
    host, port = bound.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if has_tls else 'http'}://{shown}:{port}/"


def http_server(
    app: ASGIApp, tls: ReloadedTls | None, headers_s: float = _HEADERS_S
) -> uvicorn.Server:
    """Return a server that is not running yet.

    Args:
        headers_s: how long a connection may take until it has sent a request's headers.
    """
    config = uvicorn.Config(
        app,
        http=type("_Protocol", (_BoundedProtocol,), {"waiting": {}, "headers_s": headers_s}),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MAX_CONNECTIONS + 1,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_END_S,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        ssl_context_factory=None if tls is None else _context_factory(tls),
    )
    return uvicorn.Server(config)


def end_by_signals(server: uvicorn.Server) -> None:
    """Let SIGTERM and SIGINT end active requests, and then the server, from now on."""
    # uvicorn raises the signal again when it has ended; that is a normal end here. A signal that
    # comes before uvicorn listens to it ends the server as soon as it has begun.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: setattr(server, "should_exit", True))


def _context_factory(tls: ReloadedTls) -> Callable[..., ssl.SSLContext]:
    contexts = ServerContexts(tls)

    def choose(connection: ssl.SSLObject, name: str | None, first: ssl.SSLContext) -> None:
        newest = contexts.newest()
        if newest is not first:
            connection.context = newest

    def make(*_: object) -> ssl.SSLContext:
        context = contexts.newest()
        # Called for each handshake, with a name or without.
        context.sni_callback = choose
        return context

    return make


class _BoundedProtocol(H11Protocol):
    """HTTP on a connection, with the identity of its client certificate in each request.

    A connection ends if its headers or the answer take too long. If connections are too many, the
    one ends that has waited for a request for longest.

    Attributes:
        waiting: the connections of the server that have no request now, the oldest first.
        headers_s: as of http_server.
    """

    waiting: dict["_BoundedProtocol", None]
    headers_s: float

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        certificate = transport.get_extra_info("peercert")
        identity = _identity(certificate) if certificate else None
        app = self.app

        async def identified(scope: Scope, receive: Receive, send: Send) -> None:
            if certificate:
                scope[IDENTITY] = identity
            self.waiting.pop(self, None)
            self._end_after(_ANSWER_S)
            try:
                await app(scope, receive, send)
            finally:
                self._wait()

        self.app = identified
        self._timer: asyncio.TimerHandle | None = None
        self._wait()
        oldest = next(iter(self.waiting))
        # If all others have a request, uvicorn answers this one with 503.
        if len(self.connections) > MAX_CONNECTIONS and oldest is not self:
            del self.waiting[oldest]
            # With TLS uvicorn learns of the end some turns of the loop later.
            self.connections.discard(oldest)
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.waiting.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _wait(self) -> None:
        """Wait for the next request, unless the connection is over."""
        if not self.transport.is_closing():
            self.waiting[self] = None
            self._end_after(self.headers_s)

    def _end_after(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self.transport.abort)


def _identity(certificate: Any) -> str | None:
    """Return the identity of a verified certificate; None if it names none."""
    try:
        return identity_of_certificate(certificate)
    except UnauthenticatedError:
        return None
