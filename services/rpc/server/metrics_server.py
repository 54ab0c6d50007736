"""Serve the metrics of this process, over TLS if the service has it.

The server is prometheus_client's, but for the handshake: it shakes hands in the thread that accepts
connections, so that one client that connects and sends nothing would stop them all.
"""

import logging
import socket
from contextlib import ExitStack, suppress
from threading import Lock, Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import REGISTRY, CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from services.common.addresses import is_loopback, split_address
from services.rpc.server.transport import ServerContexts, Transport

# A client that sends nothing would occupy its thread.
_IDLE_TIMEOUT_S = 30.0

MAX_CONNECTIONS = 64
"""Each has a thread and a file descriptor; a few scrapers need one each, for milliseconds."""

_log = logging.getLogger("sediment.tls")


def start_metrics(
    address: str,
    cleanup: ExitStack,
    transport: Transport | None = None,
    registry: CollectorRegistry = REGISTRY,
) -> str:
    """Serve metrics, of this process by default, until `cleanup` unwinds; return its HOST:PORT.

    Raises:
        SystemExit: the address cannot be listened on.
    """
    tls = None if transport is None else transport.metrics_tls
    contexts = None if tls is None else ServerContexts(tls)
    host, port = split_address(address)
    app = make_wsgi_app(registry)
    if contexts is None and is_loopback(address):
        app = _for_this_machine(app)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        made = type("_Made", (_Server,), {"address_family": family, "contexts": contexts})
        server: _Server = make_server(host, port, app, made, _SilentHandler)
    except OSError as e:
        raise SystemExit(f"cannot listen on {address}: {e.strerror}") from e
    thread = Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    cleanup.callback(thread.join)
    cleanup.callback(server.server_close)
    cleanup.callback(server.shutdown)
    return f"{address.rpartition(':')[0]}:{server.server_port}"


class _Server(ThreadingWSGIServer):
    """Shake hands in the thread of a connection; close the oldest of too many.

    The oldest one is idle: an answer takes milliseconds. If the newest were refused, idle clients
    could keep everyone else out.
    """

    contexts: ServerContexts | None = None
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, *args: Any, **named: Any) -> None:
        self._connections: dict[Any, None] = {}  # The oldest first.
        self._lock = Lock()
        super().__init__(*args, **named)

    def get_request(self) -> tuple[Any, Any]:
        connection, peer = super().get_request()
        connection.settimeout(_IDLE_TIMEOUT_S)
        if self.contexts is not None:
            connection = self.contexts.newest().wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        return connection, peer

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._connections[request] = None
            oldest = next(iter(self._connections))
            is_full = len(self._connections) > MAX_CONNECTIONS
            if is_full:
                del self._connections[oldest]
        if is_full:
            _log.warning(
                "over %d connections to metrics at once; closing the oldest", MAX_CONNECTIONS
            )
            with suppress(OSError):  # The client has left.
                # This wakes the connection's thread, which then closes it. Not SSLSocket's own
                # shutdown: after it, the thread would write to the connection in plaintext.
                socket.socket.shutdown(oldest, socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a failed connection in one line, at DEBUG: anyone can cause it."""
        _log.debug("a connection to metrics failed", exc_info=True)


class _SilentHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: requests are many."""


def _for_this_machine(app: Any) -> Any:
    """Refuse requests that name another host: a page of another site whose name resolves to this
    machine.
    """

    def guarded(environ: Any, start_response: Any) -> Any:
        if is_loopback(environ.get("HTTP_HOST", "")):
            return app(environ, start_response)
        start_response("421 Misdirected Request", [("Content-Type", "text/plain")])
        return [b"request the metrics by the name localhost or 127.0.0.1\n"]

    return guarded
