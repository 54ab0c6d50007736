"""Serve Prometheus metrics from a fixed number of threads."""

import logging
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Lock, Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import prometheus_client
from prometheus_client import Histogram

RPC_SECONDS = Histogram(
    "sediment_rpc_seconds",
    "Time of calls served, by method and status.",
    ["method", "code"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)

THREADS = 8

# Of each read and each write. Who opens a connection sends its request at once.
TIMEOUT_S = 10.0
_log = logging.getLogger("sediment.server")


def start_metrics_server(host: str, port: int) -> tuple[int, Callable[[], None]]:
    """Serve the registry of this process until the function is called that is answered beside the
    port.

    Raises:
        OSError: somebody else listens there, or it is no address of this machine.
    """
    server = _MetricsServer(host, port)
    server.set_app(prometheus_client.make_wsgi_app())
    thread = Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        thread.join()
        server.server_close()

    return server.server_port, stop


class _Handler(WSGIRequestHandler):
    timeout = TIMEOUT_S

    def log_message(self, *args: object) -> None:
        """Not a line for each scrape."""


class _MetricsServer(WSGIServer):
    """The newest THREADS connections have a thread each; those that came before them are closed.

    A scrape lasts milliseconds. So it is served however many connections do nothing, and who wants
    to keep it out must open THREADS of them within that time, again and again.
    """

    request_queue_size = 128

    def __init__(self, host: str, port: int) -> None:
        (self.address_family, _, _, _, address), *_ = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        self._lock = Lock()
        # In the order in which they came.
        self._open: dict[socket.socket, None] = {}
        self._pool = ThreadPoolExecutor(THREADS, "metrics")
        super().__init__((str(address[0]), port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open[request] = None
            for oldest in list(self._open)[:-THREADS]:
                self._hang_up(oldest)
        self._pool.submit(self._serve, request, client_address)

    def _serve(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception:  # noqa: BLE001 - told by handle_error
            self.handle_error(request, client_address)
        finally:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Else there were a traceback for each peer that hangs up or falls silent."""
        _log.debug("a scrape by %s failed", client_address, exc_info=True)

    def server_close(self) -> None:
        super().server_close()
        with self._lock:
            for request in list(self._open):
                self._hang_up(request)
        self._pool.shutdown()

    def _hang_up(self, request: socket.socket) -> None:
        """Its thread, which waits for it or will take it up, finds it ended."""
        del self._open[request]
        with suppress(OSError):  # The peer may have been first.
            request.shutdown(socket.SHUT_RDWR)
