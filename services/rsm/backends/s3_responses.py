"""Check that a response is one of an S3 store, and read its content."""

import base64
import re
from collections.abc import Generator
from http import HTTPStatus
from xml.etree import ElementTree

from urllib3 import BaseHTTPResponse
from urllib3.exceptions import HTTPError

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.rsm.backends.protocol import NoAnswerError, read_chunks, require_reaches
from services.rsm.backends.s3_retry import BrokenBodyError, error_for, s3_errors

_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19}|\*)")


def release(response: BaseHTTPResponse) -> None:
    """Return the connection to the pool if its body was read to the end; else close it."""
    response.close()
    response.release_conn()


def code_of(response: BaseHTTPResponse, what: str) -> str | None:
    """Return the code of an error; None if there is none, as in the response to a HEAD."""
    with s3_errors(what):
        if "xml" not in response.headers.get("content-type", "") or not response.data:
            return None
        return _xml(response).findtext("{*}Code")


def require_success(response: BaseHTTPResponse, what: str) -> None:
    """Raise the error that the store reports, if it reports one."""
    if response.status >= HTTPStatus.MULTIPLE_CHOICES:
        raise error_for(code_of(response, what), response.status, what)


def require_read(response: BaseHTTPResponse, what: str) -> None:
    """Check the response to a GET as require_success does.

    Raises:
        RetriableRemoteStorageError: it is a failure without a code, so an intermediary sent it.
    """
    if response.status < HTTPStatus.MULTIPLE_CHOICES:
        return
    code = code_of(response, what)
    # The location's proxy is an intermediary too, and 407 is its answer alone.
    if code is None and response.status != HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
        raise not_of_a_store(what, f"it is {response.status} without a code")
    raise error_for(code, response.status, what)


def require_object(response: BaseHTTPResponse, what: str) -> None:
    """Check that a successful response is that of an object, before its body is read.

    Raises:
        RetriableRemoteStorageError: it is a page of an intermediary.
    """
    if not response.headers.get("etag"):
        raise not_of_a_store(what, "it lacks an ETag")
    kind = response.headers.get("content-type", "")
    # Some stores guess the type of an object by its first bytes; these send a request id.
    is_of_a_store = "x-amz-request-id" in response.headers
    if kind.lower().startswith("text/html") and not is_of_a_store:
        raise not_of_a_store(what, f"it is {kind}")


def require_range(response: BaseHTTPResponse, start: int, end: int, what: str) -> None:
    """Check that a response's headers match the requested range, before its body is read.

    Raises:
        CorruptSegmentError: the object ends before `end`.
        RetriableRemoteStorageError: the body's length is not that of the range.
        RemoteStorageError: the response has the whole object, or another range.
    """
    if response.status != HTTPStatus.PARTIAL_CONTENT:
        raise RemoteStorageError(f"{what}: the object store ignored the range")
    text = response.headers.get("content-range", "")
    match = _CONTENT_RANGE.fullmatch(text)
    if match is None:
        raise RemoteStorageError(f"{what}: not a Content-Range: {text!r}")
    first, last, object_size = match.groups()
    if object_size != "*":
        require_reaches(end, int(object_size), what)
    if (int(first), int(last)) != (start, end):
        raise RemoteStorageError(f"{what}: the object store sends {text!r}")
    length = response.headers.get("content-length", "")
    if length.isdecimal() and length != str(end - start + 1):
        raise RetriableRemoteStorageError(f"{what}: the body has {length} bytes")


def read_body(
    response: BaseHTTPResponse, size_bytes: int, what: str
) -> Generator[bytes, None, None]:
    """Yield chunks of `size_bytes` in all, as they are on the wire.

    Raises:
        BrokenBodyError: the connection broke; the store may have the rest.
        RetriableRemoteStorageError: the body ended properly, but early.
    """

    def read(most: int) -> bytes:
        try:
            # With decoding, urllib3 withholds the bytes that arrived before a break.
            return response.read(most, decode_content=False)
        except HTTPError as e:
            raise BrokenBodyError(type(e).__name__, response.retries) from e

    return read_chunks(read, size_bytes, what)


def checksum(crc: int) -> dict[str, str]:
    """Return the headers by which a store verifies that a body with this crc32c arrived whole."""
    return {"x-amz-checksum-crc32c": crc_text(crc)}


def crc_text(crc: int) -> str:
    """Return a crc32c as S3 writes it, in base64."""
    return base64.b64encode(crc.to_bytes(4, "big")).decode("ascii")


def require_written(response: BaseHTTPResponse, crc: int, key: str) -> str:
    """Return the ETag of a written object; raise if it is missing or the store's crc32c differs."""
    etag = response.headers.get("etag")
    if not etag:
        raise not_of_a_store(f"PUT {key}", "it lacks an ETag")
    theirs = response.headers.get("x-amz-checksum-crc32c", crc_text(crc))
    if theirs != crc_text(crc):
        text = f"PUT {key}: sent with crc32c {crc_text(crc)}, the object store has {theirs}"
        raise RetriableRemoteStorageError(text)
    return etag


def require_put(response: BaseHTTPResponse, crc: int, key: str) -> None:
    """Check that the store has written a whole object.

    The error's cause is NoAnswerError, unless the store has refused every try of the request.
    """
    try:
        require_success(response, f"PUT {key}")
        require_written(response, crc, key)
    except RemoteStorageError as e:
        if was_always_refused(response):
            raise
        raise e from NoAnswerError()


def was_always_refused(response: BaseHTTPResponse) -> bool:
    """Return whether the store has refused this try of a request and each one before it."""
    tries = response.retries.history if response.retries else ()
    return all(map(_is_refusal, [response.status, *(each.status for each in tries)]))


def _is_refusal(status: int | None) -> bool:
    """Return whether a status is a refusal by the store itself.

    None means no response. 502 and 504 mean that a gateway got no response. A status below 400 that
    is no success comes from an intermediary.
    """
    if status is None or status in (HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT):
        return False
    return status >= HTTPStatus.BAD_REQUEST


def require_empty(response: BaseHTTPResponse, what: str) -> None:
    if response.data:
        raise not_of_a_store(what, f"it has a body of {len(response.data)} bytes")


def parsed(response: BaseHTTPResponse, root: str, what: str) -> ElementTree.Element:
    """Parse a response, which must be a `root`; raise an error for any other.

    An Error is raised whatever the status: the store may fail after it sent the status.
    """
    with s3_errors(what):
        element = _xml(response)
    name = element.tag.rpartition("}")[2]
    if name == "Error":
        raise error_for(element.findtext("{*}Code"), 500, what)
    if name != root:
        raise not_of_a_store(what, f"it is no {root}")
    return element


def text_of(element: ElementTree.Element, name: str) -> str:
    """Return the text of a part of an element; it must be there."""
    text = element.findtext(f"{{*}}{name}")
    if text is None:
        raise not_of_a_store(element.tag.rpartition("}")[2], f"it lacks {name}")
    return text


def not_of_a_store(what: str, why: str) -> RetriableRemoteStorageError:
    return RetriableRemoteStorageError(f"{what}: not an answer of an S3 store: {why}")


def _xml(response: BaseHTTPResponse) -> ElementTree.Element:
    # As text: another encoding would hide entities, which s3_answers refuses.
    return ElementTree.fromstring(response.data.decode())
