"""Probe a bucket of an S3 store."""

from http import HTTPStatus

from crc32c import crc32c
from urllib3 import BaseHTTPResponse

from services.api.errors import CorruptSegmentError, RemoteStorageError
from services.rsm.backends.s3 import S3Storage
from services.rsm.backends.s3_responses import checksum
from services.rsm.backends.s3_retry import error_for
from services.rsm.locations import Location
from services.rsm.probe import REQUIRED, Capability, Step, StoreProbe


class S3Probe(StoreProbe):
    """Probe a bucket, also below the requests of StorageBackend."""

    required = REQUIRED

    def __init__(self, location: Location, storage: S3Storage) -> None:
        super().__init__(location)
        self._storage = storage
        self._requests = storage.requests
        self._write_headers = storage.target.write_headers

    def steps(self) -> dict[Capability, Step]:
        return {
            **super().steps(),
            Capability.IF_NONE_MATCH: self._detect_if_none_match,
            Capability.RANGE_PAST_THE_END: self._range_past_the_end,
            Capability.CHECKSUMS: self._checksums,
            Capability.ETAGS: self._etags,
        }

    def remove(self, key: str) -> None:
        self._storage.remove(key)

    def _detect_if_none_match(self) -> None:
        if not self._storage.detect_if_none_match():
            raise RemoteStorageError("the store ignores or refuses the header")

    def _range_past_the_end(self) -> None:
        size = len(self.content)
        headers = {"Range": f"bytes={size}-{size + 9}"}
        response = self._requests.request("GET", self.key("whole"), headers=headers)
        _require(response, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)

    def _checksums(self) -> None:
        body = self.content
        response = self._requests.request(
            "PUT",
            self.key("scratch"),
            body=body,
            headers={**self._write_headers, **checksum(crc32c(body) ^ 1)},
        )
        if response.status < HTTPStatus.MULTIPLE_CHOICES:
            raise RemoteStorageError("the store accepted bytes with a wrong crc32c")
        _require(response, HTTPStatus.BAD_REQUEST)

    def _etags(self) -> None:
        put = self._requests.request(
            "PUT", self.key("scratch"), body=self.content, headers=self._write_headers
        )
        _require(put, HTTPStatus.OK)
        reread = self._requests.request("GET", self.key("scratch"))
        _require(reread, HTTPStatus.OK)
        written, read = put.headers.get("etag", ""), reread.headers.get("etag", "")
        if not written or not read:
            raise RemoteStorageError("an answer has no ETag")
        if written.strip('"') != read.strip('"'):
            raise CorruptSegmentError(f"written as {written}, read as {read}")


def _require(response: BaseHTTPResponse, status: HTTPStatus) -> None:
    """Raise the error of a step unless a response has this status."""
    if response.status == status:
        return
    is_momentary = response.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    if is_momentary and response.status != HTTPStatus.NOT_IMPLEMENTED:
        raise error_for(None, response.status, "trying what the store can do")
    detail = f"answered {response.status}, should be {status.value}"
    if response.status >= HTTPStatus.BAD_REQUEST:
        raise RemoteStorageError(detail)
    raise CorruptSegmentError(detail)
