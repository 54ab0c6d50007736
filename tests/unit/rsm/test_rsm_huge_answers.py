"""Test that RSM's S3 backend reads no answer of a store without a limit."""

import gzip
import re
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.rsm.backends.protocol import Upload, UploadedPart
from services.rsm.backends.s3 import S3Storage
from services.rsm.backends.s3_answers import MAX_ANSWER_BYTES
from services.rsm.factory import build_backend
from services.rsm.settings import RsmSettings

GIB = 1024**3
OVER = f"it has over {MAX_ANSWER_BYTES} bytes"
UPLOAD = Upload("key", "id")
ENTITIES = b"""<!DOCTYPE r [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]><r>&b;</r>"""
Write = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def store_that(write: Write) -> Iterator[tuple[S3Storage, list[str]]]:
    """A backend over a store that answers every request so, and its requests."""
    requests: list[str] = []

    class Store(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            requests.append(self.requestline)
            try:
                write(self)
            except OSError:
                self.close_connection = True

        do_GET = do_PUT = do_POST = do_DELETE = answer

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Store) as server:
        thread = Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        endpoint = f"127.0.0.1:{server.server_port}"
        values = {"endpoint": endpoint, "bucket": "bucket", "region": "r", "secure": False}
        keys = {"access_key": "access", "secret_key": "secret", "retries": 2}
        try:
            settings = RsmSettings.model_validate({"backend": "s3", **values, **keys})
            backend = build_backend(settings)
            assert isinstance(backend, S3Storage)
            yield backend, requests
        finally:
            server.shutdown()
            thread.join()


def answering(body: bytes, status: int = 200, **headers: str) -> Write:
    def write(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", "application/xml")
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        for name, value in ({"Content-Length": str(len(body))} | named).items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    return write


def endless(status: int) -> Write:
    """Write chunks until the client leaves."""
    piece = bytes(64 * 1024)

    def write(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", "application/xml")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        while True:
            handler.wfile.write(b"10000\r\n%b\r\n" % piece)

    return write


def to_the_end(status: int) -> Write:
    """Write without a length until the client leaves."""
    piece = bytes(64 * 1024)

    def write(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", "application/xml")
        handler.send_header("Connection", "close")
        handler.end_headers()
        while True:
            handler.wfile.write(piece)

    return write


REQUESTS: dict[str, Callable[[S3Storage], object]] = {
    "list objects": lambda store: list(store.list_objects("x", "")),
    "list uploads": lambda store: list(store.matching_uploads("x")),
    "delete many": lambda store: _raise_first(store.delete(["key"])),
    "begin an upload": lambda store: store.begin_upload("key"),
    "complete an upload": lambda store: store.complete_upload(UPLOAD, [UploadedPart(1, "e", 0)]),
    "get a range": lambda store: list(store.fetch("key", 2, 5)),
    "get": lambda store: store.get("key"),
}
PARSED = [name for name in REQUESTS if not name.startswith("get")]


def _raise_first(errors: object) -> None:
    assert isinstance(errors, dict)
    raise errors["key"]


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 3 * MAX_ANSWER_BYTES


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize(
    "write",
    [
        pytest.param(endless(404), id="in chunks"),
        pytest.param(to_the_end(404), id="without a length"),
        pytest.param(answering(b"<r>", 404, Content_Length=str(8 * GIB)), id="with a length"),
    ],
)
def test_an_error_without_an_end_is_refused(name: str, write: Write) -> None:
    with store_that(write) as (store, _), little_memory():
        with pytest.raises(RetriableRemoteStorageError, match=OVER) as refused:
            REQUESTS[name](store)
        assert re.search(r"(x of |key of |GET |POST )bucket 'bucket'", str(refused.value))


@pytest.mark.parametrize("name", PARSED)
@pytest.mark.parametrize(
    ("write", "why"),
    [
        pytest.param(endless(200), OVER, id="in chunks"),
        pytest.param(answering(ENTITIES), "declares XML entities", id="entities"),
        pytest.param(
            answering(gzip.compress(bytes(GIB // 64)), Content_Encoding="gzip"),
            "it is compressed",
            id="compressed",
        ),
        pytest.param(
            answering(ENTITIES.decode().encode("utf-16")),
            "not an answer of an S3 store",
            id="entities in another encoding",
        ),
    ],
)
def test_an_answer_that_is_or_becomes_huge_is_refused(name: str, write: Write, why: str) -> None:
    with store_that(write) as (store, requests), little_memory():
        with pytest.raises(RemoteStorageError, match=why):
            REQUESTS[name](store)
        assert len(requests) == 1


def test_the_largest_page_of_a_list_is_read() -> None:
    """1,000 keys of 1,024 characters, each of which XML writes with five."""
    entries = "".join(
        f"<Contents><Key>{'&amp;' * 1020}{number:04}</Key><Size>1</Size><ETag>e</ETag>"
        "<LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
        for number in range(1000)
    )
    page = f"<ListBucketResult><Name>bucket</Name>{entries}</ListBucketResult>".encode()
    with store_that(answering(page)) as (store, _):
        found = list(store.list_objects("", ""))
    assert len(found) == 1000
    assert found[-1].key == "&" * 1020 + "0999"


def test_a_connection_is_used_again_after_an_answer_in_chunks() -> None:
    body = b"<ListMultipartUploadsResult></ListMultipartUploadsResult>"
    ports: set[int] = set()

    def write(handler: BaseHTTPRequestHandler) -> None:
        ports.add(handler.client_address[1])
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))

    with store_that(write) as (store, _):
        for _ in range(3):
            assert list(store.matching_uploads("x")) == []
    assert len(ports) == 1
