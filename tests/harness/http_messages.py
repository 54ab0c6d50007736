"""Relay HTTP/1.1 messages over kept-alive connections, and name S3's operations."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO
from urllib.parse import parse_qs, urlsplit

MAX_HEAD_BYTES = 65_536
_PIECE_BYTES = 65_536

Send = Callable[[bytes], None]
"""A function such as `socket.sendall`."""


@dataclass(frozen=True)
class Head:
    """A start line and headers as received, with the values that framing needs."""

    raw: bytes
    start_line: str
    headers: dict[str, str]

    @property
    def method(self) -> str:
        return self.start_line.split(" ")[0]

    @property
    def target(self) -> str:
        return self.start_line.split(" ")[1]

    @property
    def status(self) -> int:
        return int(self.start_line.split(" ")[1])


def read_head(source: BinaryIO) -> Head | None:
    """Read the next message's head; None at the end of the stream.

    Raises:
        ConnectionError: the stream ended within the head, or the head is too long.
    """
    lines: list[bytes] = []
    size = 0
    while True:
        line = source.readline(MAX_HEAD_BYTES)
        if not line and not lines:
            return None
        size += len(line)
        if not line.endswith(b"\r\n") or size > MAX_HEAD_BYTES:
            raise ConnectionError("the head of an HTTP message ended early or is too long")
        if line == b"\r\n":
            break
        lines.append(line)
    start, *rest = (line.decode("latin-1").strip() for line in lines)
    fields = (field.partition(":") for field in rest)
    headers = {name.strip().lower(): value.strip() for name, _, value in fields}
    return Head(b"".join(lines) + b"\r\n", start, headers)


def request_body(head: Head, source: BinaryIO) -> Iterator[bytes]:
    """Yield the body's bytes as they are on the wire; a request without framing has none."""
    if _is_chunked(head):
        return _chunked(source)
    return _exactly(source, int(head.headers.get("content-length", "0")))


def send_all(pieces: Iterator[bytes], send: Send) -> None:
    """Send each piece, and first an empty one, so that a fault after 0 bytes applies to an empty
    body.
    """
    send(b"")
    for piece in pieces:
        send(piece)


def first_bytes(pieces: Iterator[bytes], size: int) -> Iterator[bytes]:
    """Yield the first `size` bytes; read the rest, so that the connection can continue."""
    for piece in pieces:
        yield piece[:size]
        size -= min(size, len(piece))


def with_header(head: Head, name: str, value: str) -> Head:
    """Return the same head with one header changed."""
    start, *lines = head.raw.split(b"\r\n")
    kept = [line for line in lines if not line.lower().startswith(f"{name.lower()}:".encode())]
    raw = b"\r\n".join([start, f"{name}: {value}".encode(), *kept])
    return Head(raw, head.start_line, {**head.headers, name.lower(): value})


def response_body(head: Head, method: str, source: BinaryIO) -> Iterator[bytes]:
    """Yield the body's bytes as they are on the wire; without framing, all until the stream
    ends.
    """
    if method == "HEAD" or head.status in (204, 304) or head.status < 200:
        return iter(())
    if _is_chunked(head):
        return _chunked(source)
    if "content-length" in head.headers:
        return _exactly(source, int(head.headers["content-length"]))
    return iter(lambda: source.read(_PIECE_BYTES), b"")


def ends_connection(head: Head, method: str) -> bool:
    """Return whether no other response can follow this one on its connection."""
    framed = _is_chunked(head) or "content-length" in head.headers
    bodiless = method == "HEAD" or head.status in (204, 304)
    return head.headers.get("connection", "").lower() == "close" or not (framed or bodiless)


def _is_chunked(head: Head) -> bool:
    return "chunked" in head.headers.get("transfer-encoding", "").lower()


def _exactly(source: BinaryIO, size: int) -> Iterator[bytes]:
    while size > 0:
        piece = source.read(min(size, _PIECE_BYTES))
        if not piece:
            raise ConnectionError(f"an HTTP body ended {size} bytes early")
        size -= len(piece)
        yield piece


def _chunked(source: BinaryIO) -> Iterator[bytes]:
    while True:
        line = source.readline(MAX_HEAD_BYTES)
        if not line.endswith(b"\r\n"):
            raise ConnectionError("a chunked HTTP body ended early")
        yield line
        size = int(line.split(b";")[0], 16)
        if size == 0:
            break
        yield from _exactly(source, size + len(b"\r\n"))
    while True:  # trailers, up to the empty line
        line = source.readline(MAX_HEAD_BYTES)
        yield line
        if line in (b"\r\n", b""):
            return


# The operations that a query parameter selects by method, before the path is considered.
_BY_PARAMETER = {
    ("POST", "uploads"): "CreateMultipartUpload",
    ("POST", "uploadId"): "CompleteMultipartUpload",
    ("POST", "delete"): "DeleteObjects",
    ("PUT", "uploadId"): "UploadPart",
    ("DELETE", "uploadId"): "AbortMultipartUpload",
    ("GET", "uploadId"): "ListParts",
    ("GET", "uploads"): "ListMultipartUploads",
    ("GET", "location"): "GetBucketLocation",
    ("GET", "lifecycle"): "GetBucketLifecycleConfiguration",
    ("GET", "versioning"): "GetBucketVersioning",
    ("GET", "object-lock"): "GetObjectLockConfiguration",
    ("GET", "list-type"): "ListObjectsV2",
}


def s3_operation(method: str, target: str) -> str:
    """Name an operation: `s3_operation("PUT", "/b/key?uploadId=1&partNumber=2")` is
    "UploadPart".
    """
    parts = urlsplit(target)
    for parameter in parse_qs(parts.query, keep_blank_values=True):
        if (method, parameter) in _BY_PARAMETER:
            return _BY_PARAMETER[method, parameter]
    _, _, key = parts.path.lstrip("/").partition("/")
    noun = "Object" if key else "Bucket"
    if (method, noun) == ("GET", "Bucket"):
        return "ListObjects"
    return f"{method.capitalize()}{noun}"
