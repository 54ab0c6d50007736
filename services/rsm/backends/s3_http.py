"""Send the S3 requests for which the minio SDK has no sufficient public method."""

import base64
import hashlib
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import cast
from urllib.parse import SplitResult, quote, urlencode, urlsplit
from xml.etree import ElementTree

from crc32c import crc32c
from minio import time
from minio.credentials.credentials import Credentials
from minio.error import S3Error
from minio.signer import sign_v4_s3
from urllib3 import BaseHTTPResponse, PoolManager, Retry
from urllib3.exceptions import HTTPError

from services.api.errors import (
    RemoteStorageError,
    RetriableRemoteStorageError,
    StoreAccessDeniedError,
)
from services.rsm.backends.protocol import (
    NoAnswerError,
    Part,
    Upload,
    UploadedPart,
    read_chunks,
    require_reaches,
)
from services.rsm.backends.s3_credentials import StoreCredentials
from services.rsm.backends.s3_retry import BrokenBodyError, error_for, s3_errors

_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19}|\*)")


def require_range(response: BaseHTTPResponse, start: int, end: int, what: str) -> None:
    """Check that a response's headers match the requested range, before its body is read.

    Raises:
        CorruptSegmentError: the object ends before `end`.
        RetriableRemoteStorageError: the body's length is not that of the range.
        RemoteStorageError: the response has the whole object, or another range.
    """
    if response.status != 206:
        raise RemoteStorageError(f"{what}: the object store ignored the range")
    text = response.headers.get("content-range", "")
    found = _CONTENT_RANGE.fullmatch(text)
    if found is None:
        raise RemoteStorageError(f"{what}: not a Content-Range: {text!r}")
    first, last, object_size = found.groups()
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


_UNSIGNED = "UNSIGNED-PAYLOAD"

_DENIALS = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
"""The statuses with which stores refuse credentials: 400 has the code ExpiredToken."""

_BLOCK_BYTES = 256 * 1024
"""Size of the blocks in which a body is sent.

A socket's timeout covers all bytes of one send call. Without blocks a whole part would have to be
sent within the connect timeout.
"""


@dataclass(frozen=True, slots=True)
class S3Target:
    """The bucket of requests, and how they are signed.

    Attributes:
        endpoint: HOST:PORT.
        public_endpoint: URL of the store as clients reach it; empty if RSM's own address serves.
        sign_payload: sign the sha256 of a body. Otherwise only a crc32c protects the body, and an
            intermediary could change both.
    """

    endpoint: str
    secure: bool
    region: str
    bucket: str
    credentials: StoreCredentials
    sign_payload: bool
    public_endpoint: str = ""

    @property
    def public_url(self) -> str:
        """Return the URL of the store, without a bucket, for clients."""
        return self.public_endpoint or f"{'https' if self.secure else 'http'}://{self.endpoint}"

    @property
    def url(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self.endpoint}/{self.bucket}"

    def named(self, key: str) -> str:
        """Return the name of an object, a prefix of keys, or the bucket if it is "", for errors."""
        return f"{key} of bucket {self.bucket!r}" if key else f"bucket {self.bucket!r}"


class SignedRequests:
    """Sends signed requests for one bucket, path style. Raises errors as StorageBackend."""

    def __init__(self, http: PoolManager, target: S3Target) -> None:
        # Saves a lookup in the pool manager for each request.
        self._pool = http.connection_from_url(target.url)
        self._bucket_url = urlsplit(target.url)
        # Retry a POST only if the store refused it as too busy, never if it may have worked.
        self.retries: Retry = http.connection_pool_kw["retries"]
        self._post_retries = self.retries.new(
            allowed_methods=None, status_forcelist=(429, 503), read=False, other=0
        )
        # ObjectDeletes alone retries a POST that deletes.
        self._no_retries = self.retries.new(total=0)
        self._target = target

    def put(self, key: str, data: bytes | memoryview, crc: int | None = None) -> None:
        crc = crc32c(data) if crc is None else crc
        response = self.request("PUT", key, body=data, headers=checksum(crc))
        _require_put(response, crc, f"{self._target.named(key)} ({len(data):,} bytes)")

    def put_if_none_match(self, key: str, data: bytes) -> bool:
        """Write an object unless the key is taken; return False if another request took it.

        Requires a store with honours_if_none_match: others overwrite, or refuse the request.
        """
        response = self._put_if_none_match(key, data)
        if response.status == HTTPStatus.PRECONDITION_FAILED:
            if _was_always_refused(response):
                return False
            text = f"PUT {self._target.named(key)}: the key exists, perhaps from an earlier try"
            raise RetriableRemoteStorageError(text) from NoAnswerError()
        _require_put(response, crc32c(data), self._target.named(key))
        return True

    def honours_if_none_match(self, key: str) -> bool:
        """Return whether the store honours If-None-Match, neither ignoring nor refusing it.

        Leaves an object under `key`.
        """
        self.put(key, b"first")
        response = self._put_if_none_match(key, b"second")
        if response.status == HTTPStatus.PRECONDITION_FAILED:
            return True
        if response.status in (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_IMPLEMENTED):
            what = f"PUT {self._target.named(key)} with If-None-Match"
            error = error_for(_code(response, what), response.status, what)
            if isinstance(error, RetriableRemoteStorageError):
                raise error
            return False
        _raise_unless_success(response, f"PUT {self._target.named(key)}")
        _require_written(response, crc32c(b"second"), self._target.named(key))
        return False

    def _put_if_none_match(self, key: str, data: bytes) -> BaseHTTPResponse:
        headers = {"If-None-Match": "*", **checksum(crc32c(data))}
        return self.request("PUT", key, body=data, headers=headers)

    def get_range(self, key: str, start: int, end: int, retries: Retry) -> BaseHTTPResponse:
        """Send a ranged GET and return the response, which the caller must release.

        Its body is unread. Costs half of what the SDK's get_object does before its request.
        """
        headers = {"Range": f"bytes={start}-{end}"}
        what = f"GET {self._target.named(key)} from {start} to {end}"
        response = self.request("GET", key, headers=headers, retries=retries, preload_content=False)
        if response.status < 300:
            return response
        try:
            with s3_errors(what):
                code = _code(response, what)
        finally:
            response.close()
            response.release_conn()
        if code is None:
            raise _not_of_a_store(what, f"it is {response.status} without a code")
        raise error_for(code, response.status, what)

    def delete(self, key: str) -> None:
        """Delete one object.

        Raises:
            RemoteResourceNotFoundError: the store reports that none exists; others report success.
        """
        _require_empty(self._send("DELETE", key), f"DELETE {self._target.named(key)}")

    def delete_many(self, keys: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        """Delete up to MAX_DELETE_KEYS objects; return the reason for each that may still exist.

        A key is gone if the response lists this key as deleted, not merely if it lists no error.
        """
        what = f"deleting {len(keys)} objects of bucket {self._target.bucket!r}"
        body = _delete_body(keys)
        md5 = hashlib.md5(body, usedforsecurity=False).digest()
        headers = {"Content-MD5": base64.b64encode(md5).decode("ascii")}
        response = self._send(
            "POST", "", {"delete": ""}, body=body, headers=headers, retries=self._no_retries
        )
        result = _parsed(response, "DeleteResult", what)
        gone = {element.findtext("{*}Key") for element in result.iterfind("{*}Deleted")}
        codes = {
            element.findtext("{*}Key"): element.findtext("{*}Code")
            for element in result.iterfind("{*}Error")
        }
        gone |= {key for key, code in codes.items() if code == "NoSuchKey"}
        return {
            key: error_for(codes[key], response.status, f"deleting {self._target.named(key)}")
            if key in codes
            else RetriableRemoteStorageError(
                f"deleting {self._target.named(key)}: the store's answer does not name it"
            )
            for key in keys
            if key not in gone
        }

    def begin_upload(self, key: str) -> Upload:
        headers = {"x-amz-checksum-algorithm": "CRC32C"}
        response = self._send(
            "POST", key, {"uploads": ""}, headers=headers, retries=self._post_retries
        )
        result = _parsed(
            response, "InitiateMultipartUploadResult", f"POST {self._target.named(key)}"
        )
        return Upload(key, _text(result, "UploadId"))

    def upload_part(self, upload: Upload, part: Part) -> UploadedPart:
        """Upload a part. The store joins parts by their numbers, not by their offsets."""
        crc = crc32c(part.data) if part.crc is None else part.crc
        query = {"partNumber": str(part.number), "uploadId": upload.upload_id}
        response = self._send("PUT", upload.key, query, body=part.data, headers=checksum(crc))
        return UploadedPart(
            part.number, _require_written(response, crc, self._target.named(upload.key)), crc
        )

    def complete_upload(self, upload: Upload, parts: Sequence[UploadedPart]) -> None:
        query = {"uploadId": upload.upload_id}
        response = self._send(
            "POST", upload.key, query, body=_complete_body(parts), retries=self._post_retries
        )
        what = f"completing the upload of {self._target.named(upload.key)}"
        _parsed(response, "CompleteMultipartUploadResult", what)

    def abort_upload(self, upload: Upload) -> None:
        if not upload.upload_id:
            raise ValueError(f"{upload.key}: some stores would delete the object itself")
        query = {"uploadId": upload.upload_id}
        response = self.request("DELETE", upload.key, query)
        what = f"ending the upload of {self._target.named(upload.key)}"
        if response.status != 404 or _code(response, what) != "NoSuchUpload":
            _raise_unless_success(response, what)
            _require_empty(response, what)

    def list_uploads(self, prefix: str) -> Iterator[Upload]:
        """List the store's unfinished uploads. Some stores match whole keys only (S3Storage)."""
        query = {"uploads": "", "prefix": prefix}
        truncated = True
        while truncated:
            response = self._send("GET", "", query)
            what = f"listing the uploads of {self._target.named(prefix)}"
            page = _parsed(response, "ListMultipartUploadsResult", what)
            for element in page.iterfind("{*}Upload"):
                with s3_errors(what):
                    begun = time.from_iso8601utc(_text(element, "Initiated"))
                yield Upload(
                    _text(element, "Key"),
                    _text(element, "UploadId"),
                    int(begun.timestamp() * 1000) if begun else 0,
                )
            truncated = page.findtext("{*}IsTruncated") == "true"
            if truncated:
                markers = _text(page, "NextKeyMarker"), _text(page, "NextUploadIdMarker")
                if markers == (query.get("key-marker"), query.get("upload-id-marker")):
                    raise _not_of_a_store(what, f"the page after {markers} is that page again")
                query["key-marker"], query["upload-id-marker"] = markers

    def configuration(
        self, name: str, root: str, code_of_none: str = ""
    ) -> ElementTree.Element | None:
        """Return the bucket's `root` element of a name, for example "lifecycle"; ask once.

        None if the store answers with `code_of_none`.
        """
        what = f"GET {name} of {self._target.named('')}"
        response = self.request("GET", "", {name: ""}, retries=self._no_retries)
        if response.status == HTTPStatus.NOT_FOUND and _code(response, what) == code_of_none:
            return None
        _raise_unless_success(response, what)
        return _parsed(response, root, what)

    def _send(
        self,
        method: str,
        key: str,
        query: Mapping[str, str] | None = None,
        body: bytes | memoryview | None = None,
        headers: Mapping[str, str] | None = None,
        retries: Retry | None = None,
    ) -> BaseHTTPResponse:
        response = self.request(method, key, query, body, headers, retries)
        size = f" ({len(body):,} bytes)" if body else ""
        _raise_unless_success(response, f"{method} {self._target.named(key)}{size}")
        return response

    def request(
        self,
        method: str,
        key: str,
        query: Mapping[str, str] | None = None,
        body: bytes | memoryview | None = None,
        headers: Mapping[str, str] | None = None,
        retries: Retry | None = None,
        *,
        preload_content: bool = True,
    ) -> BaseHTTPResponse:
        """Send a request and return the response, whatever its status.

        If the store refuses the credentials, and they have changed, the request is sent once more.
        The whole body of the response is read, unless `preload_content` is False. `retries`:
        None for the pool's.
        """
        request = _Request(method, key, query or {}, body, headers or {}, retries, preload_content)
        used = self._target.credentials.retrieve()
        response = self._request_once(request, used)
        if not self._is_denied(response, request) or not self._target.credentials.renew(used):
            return response
        response.close()
        response.release_conn()
        return self._request_once(request, self._target.credentials.retrieve())

    def _is_denied(self, response: BaseHTTPResponse, request: "_Request") -> bool:
        if response.status not in _DENIALS:
            return False
        what = f"{request.method} {self._target.named(request.key)}"
        error = error_for(_code(response, what), response.status, what)
        return isinstance(error, StoreAccessDeniedError)

    def _request_once(self, request: "_Request", credentials: Credentials) -> BaseHTTPResponse:
        method, body = request.method, request.body
        path = self._bucket_url.path + (f"/{quote(request.key)}" if request.key else "")
        arguments = urlencode(sorted(request.query.items()), quote_via=quote)
        url = self._bucket_url._replace(path=path, query=arguments)
        signed = self._sign(method, url, request.headers, body, credentials)
        if body is not None:
            signed["Content-Length"] = str(len(body))
        with s3_errors(f"{method} {self._target.named(request.key)}"):
            return self._pool.urlopen(
                method,
                f"{path}?{arguments}" if arguments else path,
                redirect=False,
                # urllib3 accepts any sequence of buffers that a socket accepts.
                body=cast(bytes | None, None if body is None else _blocks(body)),
                headers=signed,
                retries=request.retries,
                preload_content=request.preload_content,
            )

    def _sign(
        self,
        method: str,
        url: SplitResult,
        headers: Mapping[str, str],
        body: bytes | memoryview | None,
        credentials: Credentials,
    ) -> dict[str, str]:
        target, date = self._target, time.utcnow()
        plain = target.sign_payload or not body
        sha256 = hashlib.sha256(body or b"").hexdigest() if plain else _UNSIGNED
        named = {"Host": url.netloc, "x-amz-date": time.to_amz_date(date), **headers}
        if credentials.session_token:
            named["x-amz-security-token"] = credentials.session_token
        signed = sign_v4_s3(
            method=method,
            url=url,
            region=target.region,
            headers={**named, "x-amz-content-sha256": sha256},
            credentials=credentials,
            content_sha256=sha256,
            date=date,
        )
        return cast(dict[str, str], signed)


@dataclass(frozen=True, slots=True)
class _Request:
    """What is sent, without the signature; it may be sent more than once."""

    method: str
    key: str
    query: Mapping[str, str]
    body: bytes | memoryview | None
    headers: Mapping[str, str]
    retries: Retry | None
    preload_content: bool


def _blocks(body: bytes | memoryview) -> list[memoryview]:
    view = memoryview(body)
    return [view[at : at + _BLOCK_BYTES] for at in range(0, len(view), _BLOCK_BYTES)]


def require_object(response: BaseHTTPResponse, what: str) -> None:
    """Check that a successful response is that of an object, before its body is read.

    Raises:
        RetriableRemoteStorageError: it is a page of an intermediary.
    """
    if not response.headers.get("etag"):
        raise _not_of_a_store(what, "it lacks an ETag")
    kind = response.headers.get("content-type", "")
    # Some stores guess the type of an object by its first bytes; these send a request id.
    is_of_a_store = "x-amz-request-id" in response.headers
    if kind.lower().startswith("text/html") and not is_of_a_store:
        raise _not_of_a_store(what, f"it is {kind}")


def checksum(crc: int) -> dict[str, str]:
    """Return the headers by which a store verifies that a body with this crc32c arrived whole."""
    return {"x-amz-checksum-crc32c": _base64(crc)}


def _base64(crc: int) -> str:
    return base64.b64encode(crc.to_bytes(4, "big")).decode("ascii")


def _complete_body(parts: Sequence[UploadedPart]) -> bytes:
    namespace = {"xmlns": "http://s3.amazonaws.com/doc/2006-03-01/"}
    root = ElementTree.Element("CompleteMultipartUpload", namespace)
    for part in parts:
        element = ElementTree.SubElement(root, "Part")
        ElementTree.SubElement(element, "PartNumber").text = str(part.number)
        ElementTree.SubElement(element, "ETag").text = part.etag
        ElementTree.SubElement(element, "ChecksumCRC32C").text = _base64(part.crc32c)
    return ElementTree.tostring(root)


def _delete_body(keys: Sequence[str]) -> bytes:
    root = ElementTree.Element("Delete", {"xmlns": "http://s3.amazonaws.com/doc/2006-03-01/"})
    for key in keys:
        element = ElementTree.SubElement(root, "Object")
        ElementTree.SubElement(element, "Key").text = key
    return ElementTree.tostring(root)


def _raise_unless_success(response: BaseHTTPResponse, what: str) -> None:
    if response.status < 300:
        return
    raise error_for(_code(response, what), response.status, what)


def _code(response: BaseHTTPResponse, what: str) -> str | None:
    """Return the code of an error; None if there is none, as in the response to a HEAD."""
    if "xml" not in response.headers.get("content-type", "") or not response.data:
        return None
    with s3_errors(what):
        return S3Error.fromxml(response).code


def _parsed(response: BaseHTTPResponse, root: str, what: str) -> ElementTree.Element:
    """Parse a response, which must be a `root`; raise an error for any other.

    An Error is raised whatever the status: the store may fail after it sent the status.
    """
    with s3_errors(what):
        # As text, as the SDK does: another encoding would hide entities (s3_answers).
        element = ElementTree.fromstring(response.data.decode())
    name = element.tag.rpartition("}")[2]
    if name == "Error":
        raise error_for(element.findtext("{*}Code"), 500, what)
    if name != root:
        raise _not_of_a_store(what, f"it is no {root}")
    return element


def _require_written(response: BaseHTTPResponse, crc: int, key: str) -> str:
    """Return the ETag of a written object; raise if it is missing or the store's crc32c differs."""
    etag = response.headers.get("etag")
    if not etag:
        raise _not_of_a_store(f"PUT {key}", "it lacks an ETag")
    theirs = response.headers.get("x-amz-checksum-crc32c", _base64(crc))
    if theirs != _base64(crc):
        text = f"PUT {key}: sent with crc32c {_base64(crc)}, the object store has {theirs}"
        raise RetriableRemoteStorageError(text)
    return etag


def _require_put(response: BaseHTTPResponse, crc: int, key: str) -> None:
    """Check that the store has written a whole object.

    The error's cause is NoAnswerError, unless the store has refused every try of the request.
    """
    try:
        _raise_unless_success(response, f"PUT {key}")
        _require_written(response, crc, key)
    except RemoteStorageError as e:
        if _was_always_refused(response):
            raise
        raise e from NoAnswerError()


def _was_always_refused(response: BaseHTTPResponse) -> bool:
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


def _require_empty(response: BaseHTTPResponse, what: str) -> None:
    if response.data:
        raise _not_of_a_store(what, f"it has a body of {len(response.data)} bytes")


def _text(element: ElementTree.Element, name: str) -> str:
    text = element.findtext(f"{{*}}{name}")
    if text is None:
        raise _not_of_a_store(element.tag.rpartition("}")[2], f"it lacks {name}")
    return text


def _not_of_a_store(what: str, why: str) -> RetriableRemoteStorageError:
    return RetriableRemoteStorageError(f"{what}: not an answer of an S3 store: {why}")
