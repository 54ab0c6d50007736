"""The S3 requests that the minio SDK has no public method for.

`Minio` keeps the steps of a multipart upload and the listing of uploads to itself, its put_object
takes no If-None-Match, and no call of it sends a crc32c. The signer is the SDK's.
"""

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree

from crc32c import crc32c
from minio import time
from minio.credentials.credentials import Credentials
from minio.error import S3Error
from minio.signer import sign_v4_s3
from urllib3 import BaseHTTPResponse, PoolManager, Retry

from services.api.errors import RetriableRemoteStorageError
from services.rsm.backends.protocol import Upload, UploadedPart
from services.rsm.backends.s3_errors import error_for, s3_errors

_UNSIGNED = "UNSIGNED-PAYLOAD"


@dataclass(frozen=True, slots=True)
class S3Target:
    """Which bucket, where, and how requests to it are signed.

    Attributes:
        endpoint: HOST:PORT.
        sign_payload: put the sha256 of a body into the signature. Without it a crc32c alone guards
            the body, and someone in between could change both.
    """

    endpoint: str
    secure: bool
    region: str
    bucket: str
    credentials: Credentials
    sign_payload: bool

    @property
    def url(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self.endpoint}/{self.bucket}"


class SignedRequests:
    """Sends signed requests for one bucket, path style. Errors as of StorageBackend."""

    def __init__(self, http: PoolManager, target: S3Target) -> None:
        self._http = http
        # A POST that may have worked is not repeated, one that the store had no time for is.
        by_the_pool: Retry = http.connection_pool_kw["retries"]
        self._post_retries = by_the_pool.new(
            allowed_methods=None, status_forcelist=(429, 503), read=False, other=0
        )
        self._target = target

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._send("PUT", key, body=data, headers=checksum(crc32c(data)))

    def put_if_none_match(self, key: str, data: bytes) -> bool:
        """False: the key is taken. A store that does not know the header overwrites instead."""
        headers = {"If-None-Match": "*", **checksum(crc32c(data))}
        response = self.request("PUT", key, body=data, headers=headers)
        if response.status == 412:
            return False
        _raise_unless_success(response, f"PUT {key}")
        return True

    def delete(self, key: str) -> None:
        """Delete one object. RemoteResourceNotFoundError where a store says that there is none."""
        self._send("DELETE", key)

    def begin_upload(self, key: str) -> Upload:
        headers = {"x-amz-checksum-algorithm": "CRC32C"}
        response = self._send("POST", key, {"uploads": ""}, headers=headers)
        return Upload(key, _text(_parsed(response, f"POST {key}"), "UploadId"))

    def upload_part(self, upload: Upload, number: int, data: memoryview) -> UploadedPart:
        crc = crc32c(data)
        query = {"partNumber": str(number), "uploadId": upload.upload_id}
        response = self._send("PUT", upload.key, query, body=data, headers=checksum(crc))
        return UploadedPart(number, response.headers.get("etag", ""), crc)

    def complete_upload(self, upload: Upload, parts: Sequence[UploadedPart]) -> None:
        query = {"uploadId": upload.upload_id}
        response = self._send("POST", upload.key, query, body=_complete_body(parts))
        # The store may find out after it has sent the status: then the body is an error.
        what = f"completing the upload of {upload.key}"
        if _parsed(response, what).tag.endswith("Error"):
            raise error_for(_code(response, what), 500, what)

    def abort_upload(self, upload: Upload) -> None:
        query = {"uploadId": upload.upload_id}
        response = self.request("DELETE", upload.key, query)
        what = f"ending the upload of {upload.key}"
        if response.status != 404 or _code(response, what) != "NoSuchUpload":
            _raise_unless_success(response, what)

    def list_uploads(self, prefix: str) -> Iterator[Upload]:
        """As the store answers; some know whole keys only (see S3Storage)."""
        query = {"uploads": "", "prefix": prefix}
        truncated = True
        while truncated:
            response = self._send("GET", "", query)
            page = _parsed(response, f"listing the uploads of {prefix}")
            for element in page.iterfind("{*}Upload"):
                begun = time.from_iso8601utc(_text(element, "Initiated"))
                yield Upload(
                    _text(element, "Key"),
                    _text(element, "UploadId"),
                    int(begun.timestamp() * 1000) if begun else 0,
                )
            truncated = page.findtext("{*}IsTruncated") == "true"
            if truncated:
                query["key-marker"] = _text(page, "NextKeyMarker")
                query["upload-id-marker"] = _text(page, "NextUploadIdMarker")

    def _send(
        self,
        method: str,
        key: str,
        query: Mapping[str, str] | None = None,
        body: bytes | memoryview | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> BaseHTTPResponse:
        response = self.request(method, key, query, body, headers)
        _raise_unless_success(response, f"{method} {key or self._target.bucket}")
        return response

    def request(
        self,
        method: str,
        key: str,
        query: Mapping[str, str] | None = None,
        body: bytes | memoryview | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> BaseHTTPResponse:
        """The store's answer, whatever its status, with its whole body."""
        path = f"/{quote(key)}" if key else ""
        url = (
            f"{self._target.url}{path}?{urlencode(sorted((query or {}).items()), quote_via=quote)}"
        )
        signed = self._sign(method, url, headers or {}, body)
        with s3_errors(f"{method} {key or self._target.bucket}"):
            retries = self._post_retries if method == "POST" else None
            return self._http.urlopen(method, url, body=body, headers=signed, retries=retries)

    def _sign(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | memoryview | None
    ) -> dict[str, str]:
        target, split, date = self._target, urlsplit(url), time.utcnow()
        plain = target.sign_payload or not body
        sha256 = hashlib.sha256(body or b"").hexdigest() if plain else _UNSIGNED
        named = {"Host": split.netloc, "x-amz-date": time.to_amz_date(date), **headers}
        signed = sign_v4_s3(
            method=method,
            url=split,
            region=target.region,
            headers={**named, "x-amz-content-sha256": sha256},
            credentials=target.credentials,
            content_sha256=sha256,
            date=date,
        )
        return cast(dict[str, str], signed)


def checksum(crc: int) -> dict[str, str]:
    """Headers by which a store can tell whether a body of this crc32c came whole."""
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


def _raise_unless_success(response: BaseHTTPResponse, what: str) -> None:
    if response.status < 300:
        return
    raise error_for(_code(response, what), response.status, what)


def _code(response: BaseHTTPResponse, what: str) -> str | None:
    """The code of an error; None: there is none, as in the answer to a HEAD."""
    if "xml" not in response.headers.get("content-type", "") or not response.data:
        return None
    with s3_errors(what):
        return S3Error.fromxml(response).code


def _parsed(response: BaseHTTPResponse, what: str) -> ElementTree.Element:
    with s3_errors(what):
        return ElementTree.fromstring(response.data)


def _text(element: ElementTree.Element, name: str) -> str:
    text = element.findtext(f"{{*}}{name}")
    if text is None:
        raise RetriableRemoteStorageError(f"not an answer of an S3 store: it lacks {name}")
    return text
