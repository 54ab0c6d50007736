"""Provide a tiny real HTTP server behind a proxy."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from tests.harness.http_proxy import HttpProxy


class Store(BaseHTTPRequestHandler):
    """Keeps the body of a PUT in either framing; GET returns it, chunked if the path says so."""

    protocol_version = "HTTP/1.1"
    timeout = 10.0
    kept: dict[str, bytes]

    def do_PUT(self) -> None:
        self.kept[self.path] = self._read_body()
        self._answer(200, b"")

    def do_GET(self) -> None:
        body = self.kept.get(self.path)
        if body is None:
            self._answer(404, b"nothing here")
        elif "chunked" in self.path:
            self._answer_chunked(body)
        else:
            self._answer(200, body)

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers["Content-Length"]))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer_chunked(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        middle = len(body) // 2
        for piece in (body[:middle], body[middle:], b""):
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")

    def log_message(self, format: str, *args: object) -> None:
        """Discard the line."""


class QuietServer(ThreadingHTTPServer):
    """Logs no connections that a test has cut."""

    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Discard the error."""


@pytest.fixture
def kept() -> dict[str, bytes]:
    """Return the bodies in the server behind the proxy, by path."""
    return {}


@pytest.fixture
def server_address(kept: dict[str, bytes]) -> Iterator[str]:
    handler = type("KeepingStore", (Store,), {"kept": kept})
    with QuietServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(server_address: str) -> Iterator[HttpProxy]:
    with HttpProxy(server_address) as proxy:
        yield proxy
