"""Test RSM's S3 backend on unexpected responses to a ranged GET."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from services.api.errors import (
    CorruptSegmentError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    StoreNotFoundError,
)
from services.rsm.backends.protocol import StorageBackend
from services.rsm.factory import build_backend
from services.rsm.settings import RsmSettings

OBJECT = b"0123456789"


@dataclass(frozen=True)
class Odd:
    """An answer to a GET of bytes 2 to 5 of OBJECT."""

    status: int
    content_range: str
    length: int | None
    body: bytes
    encoding: str = ""
    kind: str = ""
    etag: str = '"0"'

    def write_to(self, handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(self.status)
        length = "" if self.length is None else str(self.length)
        for name, value in (
            ("Content-Range", self.content_range),
            ("Content-Length", length),
            ("Content-Encoding", self.encoding),
            ("Content-Type", self.kind),
            ("ETag", self.etag),
        ):
            if value:
                handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(self.body)


@contextmanager
def store_that_answers(answer: Odd) -> Iterator[tuple[StorageBackend, list[str]]]:
    """A backend over it, and the ranges that it was asked for."""
    ranges: list[str] = []

    class Store(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            ranges.append(self.headers.get("Range", ""))
            answer.write_to(self)

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
            yield build_backend(settings), ranges
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("answer", "error", "named"),
    [
        pytest.param(
            Odd(200, "", 10, OBJECT), RemoteStorageError, "ignored the range", id="whole object"
        ),
        pytest.param(
            Odd(200, "", 4, b"page", kind="text/html; charset=utf-8"),
            RetriableRemoteStorageError,
            "not an answer of an S3 store: it is text/html",
            id="a page with an ETag",
        ),
        pytest.param(
            Odd(206, "bytes 2-5/10", 4, b"page", etag=""),
            RetriableRemoteStorageError,
            "it lacks an ETag",
            id="a range of no object",
        ),
        pytest.param(
            Odd(206, "bytes 2-5/10", 3, b"234"),
            RetriableRemoteStorageError,
            "has 3 bytes",
            id="short body",
        ),
        pytest.param(
            Odd(206, "bytes 2-5/10", 5, b"23456"),
            RetriableRemoteStorageError,
            "has 5 bytes",
            id="long body",
        ),
        pytest.param(
            Odd(206, "bytes 2-5/10", None, b"234"),
            RetriableRemoteStorageError,
            "ended 1 of 4 bytes early",
            id="short body of no length",
        ),
        pytest.param(
            Odd(206, "bytes 0-3/10", 4, b"0123"), RemoteStorageError, "0-3/10", id="other range"
        ),
        pytest.param(
            Odd(206, "bytes 2-4/10", 3, b"234"), RemoteStorageError, "2-4/10", id="shorter range"
        ),
        pytest.param(
            Odd(206, "", 4, b"2345"), RemoteStorageError, "not a Content-Range", id="no range"
        ),
        pytest.param(
            Odd(206, "bytes 2-4/5", 3, b"234"), CorruptSegmentError, "5 bytes", id="short object"
        ),
        pytest.param(
            Odd(404, "", 4, b"gone"), RetriableRemoteStorageError, "404 without a code", id="a page"
        ),
        pytest.param(
            Odd(403, "", 0, b""), RetriableRemoteStorageError, "403 without a code", id="nothing"
        ),
        pytest.param(
            Odd(404, "", 9, b"<Error/>!", kind="application/xml"),
            RetriableRemoteStorageError,
            "not an answer of an S3 store",
            id="no XML",
        ),
        pytest.param(
            Odd(404, "", 99, b"<Error>", kind="application/xml"),
            RetriableRemoteStorageError,
            "cannot be reached",
            id="an error that breaks off",
        ),
        pytest.param(
            Odd(404, "", 37, b"<Error><Code>NoSuchKey</Code></Error>", kind="application/xml"),
            RemoteResourceNotFoundError,
            "404 NoSuchKey",
            id="no such key",
        ),
        pytest.param(
            Odd(404, "", 40, b"<Error><Code>NoSuchBucket</Code></Error>", kind="application/xml"),
            StoreNotFoundError,
            r"bucket '[a-z]+' from 2 to 5: .*404 NoSuchBucket; create the bucket",
            id="no such bucket",
        ),
    ],
)
def test_an_odd_answer_is_an_error_at_once(
    answer: Odd, error: type[RemoteStorageError], named: str
) -> None:
    with store_that_answers(answer) as (backend, ranges):
        with pytest.raises(RemoteStorageError, match=named) as caught:
            list(backend.fetch("key", 2, 5))
        assert caught.type is error
        assert ranges == ["bytes=2-5"]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(Odd(206, "bytes 2-5/10", 4, b"2345"), id="as asked"),
        pytest.param(Odd(206, "bytes 2-5/*", 4, b"2345"), id="of an object of unknown size"),
        pytest.param(Odd(206, "bytes 2-5/10", None, b"2345"), id="of no length"),
        pytest.param(Odd(206, "bytes 2-5/10", 4, b"2345", "gzip"), id="called compressed"),
    ],
)
def test_the_bytes_of_a_range_are_as_on_the_wire(answer: Odd) -> None:
    with store_that_answers(answer) as (backend, _):
        assert b"".join(backend.fetch("key", 2, 5)) == b"2345"


def test_a_body_that_breaks_off_is_resumed_at_its_next_byte() -> None:
    """Each answer is cut off after two bytes: none is what the rest of the range would be."""
    with store_that_answers(Odd(206, "bytes 2-5/10", 4, b"23")) as (backend, ranges):
        with pytest.raises(RemoteStorageError, match="sends 'bytes 2-5/10'"):
            list(backend.fetch("key", 2, 5))
        assert ranges == ["bytes=2-5", "bytes=4-5"]


def test_a_fetch_asks_nothing_before_its_first_chunk_is_taken() -> None:
    with store_that_answers(Odd(206, "bytes 2-5/10", 4, b"2345")) as (backend, ranges):
        chunks = backend.fetch("key", 2, 5)
        assert ranges == []
        assert next(chunks) == b"2345"
