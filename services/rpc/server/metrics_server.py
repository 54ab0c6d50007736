"""Serve the metrics of this process, over TLS if the service has it."""

import logging
import socket
import ssl
from contextlib import ExitStack, suppress
from threading import Lock, Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from services.rpc.server.sockets import names_this_machine
from services.rpc.server.transport import Transport
from services.rpc.tls import ReloadedTls

_log = logging.getLogger("sediment.tls")

# A client that sends nothing would hold its thread.
_IDLE_TIMEOUT_S = 30.0

MAX_CONNECTIONS = 64
"""Each has a thread and a file descriptor; a few scrapers need one each, for milliseconds."""


def start_metrics(address: str, cleanup: ExitStack, transport: Transport | None = None) -> str:
    """Serve the metrics of this process until `cleanup` unwinds; return its HOST:PORT.

    Raises:
        SystemExit: the address cannot be listened on.
    """
    host, _, port = address.rpartition(":")
    tls = None if transport is None or transport.has_plain_metrics else transport.tls
    made = _TlsContexts(tls, transport.metrics_ca) if transport and tls else None
    try:
        server = _listening(host.strip("[]"), int(port), made)
    except OSError as e:
        raise SystemExit(f"cannot listen on {address}: {e.strerror}") from e
    thread = Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    cleanup.callback(thread.join)
    cleanup.callback(server.server_close)
    cleanup.callback(server.shutdown)
    return f"{host}:{server.server_port}"


class _TlsContexts:
    """Makes the TLS context of each connection from the newest files."""

    def __init__(self, tls: ReloadedTls, client_ca: ReloadedTls | None) -> None:
        self._tls = tls
        self._client_ca = client_ca
        self._materials = self._newest()
        self._context = self._make()

    def context(self) -> ssl.SSLContext:
        newest = self._newest()
        if newest != self._materials:
            try:
                self._context, self._materials = self._make(), newest
            except (OSError, ssl.SSLError) as e:
                # The files changed again in this moment: the next connection reads them again.
                _log.info("TLS files of metrics changed while they were read: %s", e)
        return self._context

    def _newest(self) -> tuple[object, object]:
        client_ca = self._client_ca and self._client_ca.material()
        return self._tls.material(), client_ca

    def _make(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        files = self._tls.files
        assert files.certificate is not None
        context.load_cert_chain(files.certificate, files.key)
        if self._client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self._client_ca.files.ca)
        return context


class _Server(ThreadingWSGIServer):
    """An HTTP server that shakes hands in the thread of a connection.

    prometheus_client's own server does so in the thread that accepts connections: one client that
    connects and sends nothing would stop them all.
    """

    contexts: _TlsContexts | None = None
    request_queue_size = 64

    def __init__(self, *args: Any, **named: Any) -> None:
        # The oldest first.
        self._connections: dict[Any, None] = {}
        self._lock = Lock()
        super().__init__(*args, **named)

    def get_request(self) -> tuple[Any, Any]:
        connection, peer = super().get_request()
        connection.settimeout(_IDLE_TIMEOUT_S)
        if self.contexts is not None:
            connection = self.contexts.context().wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        return connection, peer

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own, in the place of the oldest if they are many.

        The oldest one is idle: an answer takes milliseconds. Refusing the newest one would let idle
        clients keep everyone else out.
        """
        with self._lock:
            self._connections[request] = None
            is_full = len(self._connections) > MAX_CONNECTIONS
            oldest = next(iter(self._connections)) if is_full else None
        if oldest is not None:
            _log.warning(
                "over %d connections to metrics at once; closing the oldest", MAX_CONNECTIONS
            )
            self._end(oldest)
        super().process_request(request, client_address)

    def _end(self, connection: Any) -> None:
        """Wake the thread of a connection, which then closes it."""
        with self._lock:
            self._connections.pop(connection, None)
        with suppress(OSError):  # The client has left.
            # Not SSLSocket's own: after it, the thread would write to the connection in plaintext.
            socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection that is served."""
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
    """Refuse requests that name another host."""

    def guarded(environ: Any, start_response: Any) -> Any:
        if names_this_machine(environ.get("HTTP_HOST", "")):
            return app(environ, start_response)
        start_response("421 Misdirected Request", [("Content-Type", "text/plain")])
        return [b"ask for the metrics by the name localhost or 127.0.0.1\n"]

    return guarded


def _listening(host: str, port: int, contexts: _TlsContexts | None) -> _Server:
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    made = type("_ServerOfFamily", (_Server,), {"address_family": family, "contexts": contexts})
    app = make_wsgi_app()
    if contexts is None and names_this_machine(f"[{host}]" if ":" in host else host):
        app = _for_this_machine(app)
    server: _Server = make_server(host, port, app, made, _SilentHandler)
    return server
