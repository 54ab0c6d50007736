"""Store objects in a bucket of an S3 store."""

import base64
import hashlib
import logging
import secrets
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from itertools import chain
from urllib.parse import unquote_plus
from xml.etree import ElementTree

from crc32c import crc32c
from minio import time
from urllib3 import BaseHTTPResponse, PoolManager, Retry

from services.api.errors import (
    CorruptSegmentError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.common.quantities import counted
from services.rsm.backends.protocol import (
    MAX_SMALL_OBJECT_BYTES,
    NoAnswerError,
    Part,
    SignedUrl,
    StoredObject,
    Upload,
    UploadedPart,
)
from services.rsm.backends.s3_http import S3Target, SignedRequests
from services.rsm.backends.s3_policy import SSE
from services.rsm.backends.s3_responses import (
    checksum,
    code_of,
    crc_text,
    not_of_a_store,
    parsed,
    read_body,
    release,
    require_empty,
    require_object,
    require_put,
    require_range,
    require_read,
    require_success,
    require_written,
    text_of,
    was_always_refused,
)
from services.rsm.backends.s3_retry import error_for, resumed, s3_errors

_NAMESPACE = {"xmlns": "http://s3.amazonaws.com/doc/2006-03-01/"}
_CONTINUATION = {"NextContinuationToken": "continuation-token"}
_UPLOAD_MARKERS = {"NextKeyMarker": "key-marker", "NextUploadIdMarker": "upload-id-marker"}
_log = logging.getLogger(__name__)


class S3Storage:
    """A StorageBackend in one bucket, which must exist."""

    def __init__(
        self, http: PoolManager, target: S3Target, prefix: str = "", *, writes: bool = True
    ) -> None:
        """Set up access to the bucket; send no request yet.

        Args:
            prefix: where probe objects are written. Keys are used unchanged.
            writes: False: send no probes, since they write to the store.
        """
        self.target = target
        self.requests = SignedRequests(http, target)
        self._probe_prefix = prefix
        self._honours_if_none_match: bool | None = None
        self._matches_prefixes: bool | None = None if writes else False

    def check_and_get(self, key: str) -> bytes:
        # The response to a GET distinguishes a missing bucket from a missing object.
        return self._get(key, f"GET {self.target.named(key)} at {self.target.endpoint}")

    def put(self, key: str, data: bytes | memoryview, crc: int | None = None) -> None:
        crc = crc32c(data) if crc is None else crc
        response = self.requests.request("PUT", key, body=data, headers=self._headers(crc))
        self._require_put(response, crc, f"{self.target.named(key)} ({len(data):,} bytes)")

    def put_if_absent(self, key: str, data: bytes) -> bool:
        if self._honours_if_none_match is None and not self.detect_if_none_match():
            _log.warning(
                "%s does not support If-None-Match; reading before each PUT", self.target.endpoint
            )
        if self._honours_if_none_match:
            return self.put_if_none_match(key, data)
        if any(stored.key == key for stored in self.list_objects(key)):
            return False
        self.put(key, data)
        return True

    def put_if_none_match(self, key: str, data: bytes) -> bool:
        """Write an object unless the key is taken; return False if another request took it.

        The store must honour If-None-Match: others overwrite, or refuse the request.
        """
        response = self._request_if_none_match(key, data)
        if response.status == HTTPStatus.PRECONDITION_FAILED:
            if was_always_refused(response):
                return False
            text = f"PUT {self.target.named(key)}: the key exists, perhaps from an earlier try"
            raise RetriableRemoteStorageError(text) from NoAnswerError()
        self._require_put(response, crc32c(data), self.target.named(key))
        return True

    def put_if_match(self, key: str, data: bytes, etag: str) -> bool:
        # Compared here too, since some stores ignore or refuse If-Match.
        found, what = self.describe(key), self.target.named(key)
        if found is None or found.etag != etag:
            return False
        crc = crc32c(data)
        headers = {"If-Match": f'"{etag}"', **self._headers(crc)}
        response = self.requests.request("PUT", key, body=data, headers=headers)
        if response.status in (HTTPStatus.PRECONDITION_FAILED, HTTPStatus.NOT_FOUND):
            if was_always_refused(response):
                return False
            text = f"PUT {what}: it has changed, perhaps by an earlier try"
            raise RetriableRemoteStorageError(text) from NoAnswerError()
        if response.status == HTTPStatus.NOT_IMPLEMENTED:
            self.put(key, data, crc)
            return True
        self._require_put(response, crc, what)
        return True

    def begin_upload(self, key: str) -> Upload:
        headers = {**self.target.write_headers, "x-amz-checksum-algorithm": "CRC32C"}
        retries = self.requests.post_retries
        response = self.requests.send(
            "POST", key, {"uploads": ""}, headers=headers, retries=retries
        )
        what = f"POST {self.target.named(key)}{self._asked()}"
        begun = parsed(response, "InitiateMultipartUploadResult", what)
        return Upload(key, text_of(begun, "UploadId"))

    def upload_part(self, upload: Upload, part: Part) -> UploadedPart:
        # The store joins parts by their numbers, not by their offsets.
        crc = crc32c(part.data) if part.crc is None else part.crc
        query = {"partNumber": str(part.number), "uploadId": upload.upload_id}
        response = self.requests.send("PUT", upload.key, query, part.data, checksum(crc))
        etag = require_written(response, crc, self.target.named(upload.key))
        # Not at the beginning of an upload: MinIO says it with each part only.
        self._require_encrypted(response, f"PUT {self.target.named(upload.key)}")
        return UploadedPart(part.number, etag, crc)

    def complete_upload(self, upload: Upload, parts: Sequence[UploadedPart]) -> None:
        response = self.requests.send(
            "POST",
            upload.key,
            {"uploadId": upload.upload_id},
            _complete_body(sorted(parts, key=lambda part: part.number)),
            retries=self.requests.post_retries,
        )
        what = f"completing the upload of {self.target.named(upload.key)}"
        parsed(response, "CompleteMultipartUploadResult", what)

    def abort_upload(self, upload: Upload) -> None:
        if not upload.upload_id:
            raise ValueError(f"{upload.key}: some stores would delete the object itself")
        response = self.requests.request("DELETE", upload.key, {"uploadId": upload.upload_id})
        what = f"ending the upload of {self.target.named(upload.key)}"
        if response.status != HTTPStatus.NOT_FOUND or code_of(response, what) != "NoSuchUpload":
            require_success(response, what)
            require_empty(response, what)

    def get(self, key: str) -> bytes:
        return self._get(key, f"GET {self.target.named(key)}")

    def _get(self, key: str, what: str) -> bytes:
        with self._opened(key, what) as response, s3_errors(what):
            data = response.read(MAX_SMALL_OBJECT_BYTES + 1)
        if len(data) > MAX_SMALL_OBJECT_BYTES:
            raise CorruptSegmentError(f"{what}: over {MAX_SMALL_OBJECT_BYTES} bytes")
        return data

    def fetch(self, key: str, start: int, end: int) -> Generator[bytes, None, None]:
        def get(position: int, retries: Retry) -> Generator[bytes, None, None]:
            return self._get_range(key, position, end, retries)

        what = f"GET {self.target.named(key)} from {start} to {end}"
        return resumed(get, start, self.requests.retries, what)

    def _get_range(
        self, key: str, start: int, end: int, retries: Retry
    ) -> Generator[bytes, None, None]:
        what = f"GET {self.target.named(key)} from {start} to {end}"
        with self._opened(key, what, {"Range": f"bytes={start}-{end}"}, retries) as response:
            require_range(response, start, end, what)
            yield from read_body(response, end - start + 1, what)

    @contextmanager
    def _opened(
        self,
        key: str,
        what: str,
        headers: Mapping[str, str] | None = None,
        retries: Retry | None = None,
    ) -> Iterator[BaseHTTPResponse]:
        """Send a GET for an object, and release the response, whose body is unread, at the end."""
        response = self.requests.request(
            "GET", key, headers=headers, retries=retries, preload_content=False
        )
        try:
            require_read(response, what)
            require_object(response, what)
            yield response
        finally:
            release(response)

    def presign(self, key: str, valid_s: int) -> SignedUrl | None:
        left_s = self.target.credentials.left_s()
        if left_s < 1:
            raise RetriableRemoteStorageError(
                "the S3 credentials expire in less than a second, so no URL can be signed; retry"
            )
        valid_s = int(min(valid_s, left_s))
        return SignedUrl(self.requests.presigned_url(key, valid_s), valid_s)

    def list_objects(self, prefix: str, after: str = "") -> Iterator[StoredObject]:
        # Keys that RSM did not write may have characters that XML cannot have.
        query = {"list-type": "2", "prefix": prefix, "encoding-type": "url"}
        query |= {"start-after": after} if after else {}
        what = f"listing {self.target.named(prefix)}"
        for page in self._pages("ListBucketResult", query, _CONTINUATION, what):
            is_quoted = page.findtext("{*}EncodingType") == "url"
            for element in page.iterfind("{*}Contents"):
                key = text_of(element, "Key")
                key = unquote_plus(key) if is_quoted else key
                modified_ms = _time_ms(element, "LastModified", what)
                etag = element.findtext("{*}ETag") or ""
                with s3_errors(what):
                    size_bytes = int(text_of(element, "Size"))
                yield StoredObject(key, size_bytes, etag.replace('"', ""), modified_ms)

    def describe(self, key: str) -> StoredObject | None:
        what = f"HEAD {self.target.named(key)}"
        response = self.requests.request("HEAD", key)
        if response.status == HTTPStatus.NOT_FOUND:
            # Of a missing bucket HEAD has the same answer, without a body that says so.
            with suppress(RemoteResourceNotFoundError), self._opened(key, what):
                pass
            return None
        require_success(response, what)
        headers = response.headers
        with s3_errors(what):
            modified = time.from_http_header(headers["last-modified"])
            size_bytes = int(headers["content-length"])
        etag = headers.get("etag", "").replace('"', "")
        return StoredObject(key, size_bytes, etag, int(modified.timestamp() * 1000))

    def list_uploads(self, prefix: str) -> Iterator[Upload]:
        if self._can_match_prefixes():
            return self.matching_uploads(prefix)
        return self._uploads_of(prefix)

    def matching_uploads(self, prefix: str) -> Iterator[Upload]:
        """Yield the uploads that the store lists for a prefix; some stores match whole keys."""
        what = f"listing the uploads of {self.target.named(prefix)}"
        query = {"uploads": "", "prefix": prefix}
        for page in self._pages("ListMultipartUploadsResult", query, _UPLOAD_MARKERS, what):
            for element in page.iterfind("{*}Upload"):
                begun_ms = _time_ms(element, "Initiated", what)
                yield Upload(text_of(element, "Key"), text_of(element, "UploadId"), begun_ms)

    def _pages(
        self, root: str, query: Mapping[str, str], markers: Mapping[str, str], what: str
    ) -> Iterator[ElementTree.Element]:
        """Yield the pages of a list.

        Args:
            root: the element that a page is.
            markers: elements of a page that are arguments of the request for the next one.
        """
        marked: dict[str, str] = {}
        while True:
            response = self.requests.request("GET", "", {**query, **marked})
            require_read(response, what)
            page = parsed(response, root, what)
            yield page
            if page.findtext("{*}IsTruncated") != "true":
                return
            before, marked = marked, {name: text_of(page, each) for each, name in markers.items()}
            if marked == before:
                raise not_of_a_store(what, f"the page after {marked} is that page again")

    def _uploads_of(self, prefix: str) -> Iterator[Upload]:
        """List the uploads of a prefix in a store that matches whole keys, each once."""
        listed: set[Upload] = set()
        for upload in chain(self.matching_uploads(prefix), self.matching_uploads("")):
            if upload.key.startswith(prefix) and upload not in listed:
                listed.add(upload)
                yield upload

    def delete(self, keys: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        what = f"deleting {counted(len(keys), 'object')} of {self.target.named('')}"
        body = _delete_body(keys)
        md5 = hashlib.md5(body, usedforsecurity=False).digest()
        headers = {"Content-MD5": base64.b64encode(md5).decode("ascii")}
        retries = self.requests.no_retries  # ObjectDeletes retries deletes.
        try:
            response = self.requests.send("POST", "", {"delete": ""}, body, headers, retries)
            result = parsed(response, "DeleteResult", what)
        except RemoteStorageError as e:
            return dict.fromkeys(keys, e)
        # A key is gone if the response lists it as deleted, not merely if it lists no error.
        gone = {element.findtext("{*}Key") for element in result.iterfind("{*}Deleted")}
        codes = {
            element.findtext("{*}Key"): element.findtext("{*}Code")
            for element in result.iterfind("{*}Error")
        }
        gone |= {key for key, code in codes.items() if code == "NoSuchKey"}
        return {
            key: error_for(codes[key], response.status, f"deleting {self.target.named(key)}")
            if key in codes
            else RetriableRemoteStorageError(
                f"deleting {self.target.named(key)}: the store's answer does not name it"
            )
            for key in keys
            if key not in gone
        }

    def remove(self, key: str) -> None:
        """Delete an object of a probe, also in a store without multi-delete; log a failure."""
        try:
            require_empty(self.requests.send("DELETE", key), f"DELETE {self.target.named(key)}")
        except RemoteResourceNotFoundError:
            return
        except RemoteStorageError as e:
            _log.warning("%s is left behind: %s", key, e)

    def detect_if_none_match(self) -> bool:
        """Find out with an object of RSM's own whether the store honours If-None-Match.

        Other stores ignore the header, or refuse the request.
        """
        key = f"{self._probe_prefix}.probe-{secrets.token_hex(8)}"
        try:
            self.put(key, b"first")
            self._honours_if_none_match = self._keeps_first(key)
        finally:
            self.remove(key)
        return self._honours_if_none_match

    def _keeps_first(self, key: str) -> bool:
        """Try to write a second object under a key; return whether the store refuses properly."""
        name, second = self.target.named(key), b"second"
        response = self._request_if_none_match(key, second)
        if response.status == HTTPStatus.PRECONDITION_FAILED:
            return True
        if response.status in (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_IMPLEMENTED):
            what = f"PUT {name} with If-None-Match"
            error = error_for(code_of(response, what), response.status, what)
            if isinstance(error, RetriableRemoteStorageError):
                raise error
            return False
        require_success(response, f"PUT {name}")
        require_written(response, crc32c(second), name)
        return False

    def _request_if_none_match(self, key: str, data: bytes) -> BaseHTTPResponse:
        headers = {"If-None-Match": "*", **self._headers(crc32c(data))}
        return self.requests.request("PUT", key, body=data, headers=headers)

    def _require_put(self, response: BaseHTTPResponse, crc: int, name: str) -> None:
        require_put(response, crc, f"{name}{self._asked()}")
        self._require_encrypted(response, f"PUT {name}")

    def _asked(self) -> str:
        """Name the headers of the location's properties, which the store may have refused."""
        names = ", ".join(self.target.write_headers)
        return f" with {names}" if names else ""

    def _require_encrypted(self, response: BaseHTTPResponse, what: str) -> None:
        """Check that the store has not ignored the encryption that the location asks for."""
        wanted, answered = self.target.write_headers.get(SSE), response.headers.get(SSE)
        if wanted and answered != wanted:
            raise RemoteStorageError(
                f"{what}: sse of the location is {wanted!r}, the store's answer has "
                f"{answered or 'none'}; remove sse, or use a store that encrypts"
            )

    def _headers(self, crc: int) -> dict[str, str]:
        """Return the headers of a PUT of a whole object."""
        return {**self.target.write_headers, **checksum(crc)}

    def _can_match_prefixes(self) -> bool:
        """Return whether the store lists uploads by the beginning of a key.

        One probe with an upload of RSM's own finds out. If nothing may be written, the result is
        False. MinIO takes a prefix for a whole key, and an empty one for all uploads of the bucket
        begun since MinIO started, in no order of keys.
        """
        if self._matches_prefixes is None:
            stem = f"{self._probe_prefix}.probe-{secrets.token_hex(8)}"
            upload = self.begin_upload(f"{stem}.upload")
            try:
                self._matches_prefixes = upload in self.matching_uploads(stem)
            finally:
                self._try_abort(upload)
            if not self._matches_prefixes:
                endpoint = self.target.endpoint
                _log.info(
                    "%s cannot list uploads by prefix; listing those of the whole bucket", endpoint
                )
        return self._matches_prefixes

    def _try_abort(self, upload: Upload) -> None:
        try:
            self.abort_upload(upload)
        except RemoteStorageError as e:
            _log.warning(
                "the upload of %s cannot be aborted and stays in the store: %s", upload.key, e
            )


def _complete_body(parts: Sequence[UploadedPart]) -> bytes:
    root = ElementTree.Element("CompleteMultipartUpload", _NAMESPACE)
    for part in parts:
        element = ElementTree.SubElement(root, "Part")
        ElementTree.SubElement(element, "PartNumber").text = str(part.number)
        ElementTree.SubElement(element, "ETag").text = part.etag
        ElementTree.SubElement(element, "ChecksumCRC32C").text = crc_text(part.crc32c)
    return ElementTree.tostring(root)


def _delete_body(keys: Sequence[str]) -> bytes:
    root = ElementTree.Element("Delete", _NAMESPACE)
    for key in keys:
        element = ElementTree.SubElement(root, "Object")
        ElementTree.SubElement(element, "Key").text = key
    return ElementTree.tostring(root)


def _time_ms(element: ElementTree.Element, name: str, what: str) -> int:
    with s3_errors(what):
        moment = time.from_iso8601utc(text_of(element, name))
        return int(moment.timestamp() * 1000) if moment else 0
