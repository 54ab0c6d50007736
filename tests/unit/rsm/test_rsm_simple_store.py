"""Test RSM's S3 backend over a store that supports neither Range nor If-None-Match."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, urlsplit

import pytest

from services.api.errors import RemoteStorageError
from services.rsm.backends.protocol import StorageBackend
from services.rsm.factory import build_backend
from services.rsm.settings import RsmSettings
from tests.harness.stores import keys_in

_TIME = "2026-01-02T03:04:05.678Z"
_NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


class SimpleStore(BaseHTTPRequestHandler):
    """Puts, gets, lists and deletes; takes every signature and ignores every condition."""

    objects: dict[str, bytes]

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.objects[urlsplit(self.path).path] = body
        self._answer(b"", etag="1")

    def do_GET(self) -> None:
        path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query, True)
        if "list-type" in query:
            keys = (name.removeprefix("/bucket/") for name in self.objects)
            found = (key for key in keys if key.startswith(query["prefix"][0]))
            contents = "".join(
                f"<Contents><Key>{key}</Key><Size>1</Size><LastModified>{_TIME}</LastModified>"
                "</Contents>"
                for key in found
            )
            page = f"<Name>bucket</Name><IsTruncated>false</IsTruncated>{contents}"
            self._answer(f"<ListBucketResult {_NAMESPACE}>{page}</ListBucketResult>".encode())
        else:
            self._answer(self.objects[path], etag="1")

    def do_DELETE(self) -> None:
        del self.objects[urlsplit(self.path).path]
        self._answer(b"")

    def _answer(self, body: bytes, etag: str = "") -> None:
        self.send_response(200)
        if etag:
            self.send_header("ETag", etag)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextmanager
def simple_store() -> Iterator[str]:
    handler = type("OneStore", (SimpleStore,), {"objects": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def backend() -> Iterator[StorageBackend]:
    with simple_store() as endpoint:
        values = {"endpoint": endpoint, "bucket": "bucket", "region": "r", "secure": False}
        keys = {"access_key": "access", "secret_key": "secret"}
        yield build_backend(RsmSettings.model_validate({"backend": "s3", **values, **keys}))


@pytest.mark.parametrize(("start", "end"), [(3, 5), (0, 4), (0, 9), (0, 10)])
def test_the_whole_object_for_a_range_is_refused(
    backend: StorageBackend, start: int, end: int
) -> None:
    backend.put("key", b"0123456789")
    with pytest.raises(RemoteStorageError, match="ignored the range"):
        list(backend.fetch("key", start, end))


def test_a_key_that_is_taken_is_found_before_the_write(backend: StorageBackend) -> None:
    assert backend.put_if_absent("key", b"first")
    assert not backend.put_if_absent("key", b"second")
    assert backend.get("key") == b"first"


def test_the_probe_leaves_nothing(backend: StorageBackend) -> None:
    backend.put_if_absent("key", b"first")
    assert list(keys_in(backend, "")) == ["key"]
