"""What an S3 store is tried with below the requests of StorageBackend."""

from collections.abc import Mapping
from http import HTTPStatus

from crc32c import crc32c
from urllib3 import BaseHTTPResponse

from services.api.errors import RemoteResourceNotFoundError
from services.rsm.backends.s3 import S3Storage
from services.rsm.backends.s3_errors import error_for
from services.rsm.backends.s3_requests import SignedRequests, checksum
from services.rsm.capabilities import Capability, Outcome, ShortcomingError, Step
from services.rsm.probe import OwnSteps, ProbeObjects


def s3_steps(storage: S3Storage, signed: SignedRequests, unsigned: SignedRequests) -> OwnSteps:
    """Of one bucket. `signed` signs payloads as RSM does, `unsigned` never; `storage` is told
    whether its store honours If-None-Match."""

    def steps(objects: ProbeObjects) -> Mapping[Capability, Step]:
        return _S3Steps(storage, signed, unsigned, objects).steps()

    def remove(key: str) -> None:
        try:
            signed.delete(key)
        except RemoteResourceNotFoundError:
            return

    return OwnSteps(steps, remove)


class _S3Steps:
    def __init__(
        self,
        storage: S3Storage,
        signed: SignedRequests,
        unsigned: SignedRequests,
        objects: ProbeObjects,
    ) -> None:
        self._storage = storage
        self._signed = signed
        self._unsigned = unsigned
        self._objects = objects

    def steps(self) -> dict[Capability, Step]:
        return {
            Capability.RANGES: self._ranges,
            Capability.IF_NONE_MATCH: self._if_none_match,
            Capability.RANGE_PAST_THE_END: self._range_past_the_end,
            Capability.CHECKSUMS: self._checksums,
            Capability.ETAGS: self._etags,
            Capability.UNSIGNED_PAYLOAD: self._unsigned_payload,
        }

    def _ranges(self) -> None:
        response = self._get_range(3, 9)
        if response.status == HTTPStatus.OK:
            detail = f"the whole object of {len(response.data)} bytes came for a range of 7"
            raise ShortcomingError(Outcome.MISSING, detail)
        _require(response, HTTPStatus.PARTIAL_CONTENT)
        if response.data != self._objects.content[3:10]:
            raise ShortcomingError(Outcome.WRONG, "other bytes came than those of the range")

    def _range_past_the_end(self) -> None:
        size = len(self._objects.content)
        _require(self._get_range(size, size + 9), HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)

    def _if_none_match(self) -> None:
        honoured = self._signed.honours_if_none_match(self._objects.scratch)
        self._storage.learn_if_none_match(honoured=honoured)
        if not honoured:
            raise ShortcomingError(Outcome.MISSING, "the header is ignored or refused")

    def _checksums(self) -> None:
        body = self._objects.content
        response = self._signed.request(
            "PUT", self._objects.scratch, body=body, headers=checksum(crc32c(body) ^ 1)
        )
        if response.status < HTTPStatus.MULTIPLE_CHOICES:
            raise ShortcomingError(Outcome.MISSING, "bytes were taken with a crc32c not theirs")
        _require(response, HTTPStatus.BAD_REQUEST)

    def _etags(self) -> None:
        put = self._signed.request("PUT", self._objects.scratch, body=self._objects.content)
        _require(put, HTTPStatus.OK)
        got = self._signed.request("GET", self._objects.scratch)
        _require(got, HTTPStatus.OK)
        written, read = put.headers.get("etag", ""), got.headers.get("etag", "")
        if not written or not read:
            raise ShortcomingError(Outcome.MISSING, "an answer has no ETag")
        if written.strip('"') != read.strip('"'):
            raise ShortcomingError(Outcome.WRONG, f"written as {written}, read as {read}")

    def _unsigned_payload(self) -> None:
        self._unsigned.put(self._objects.scratch, self._objects.content)

    def _get_range(self, first: int, last: int) -> BaseHTTPResponse:
        headers = {"Range": f"bytes={first}-{last}"}
        return self._signed.request("GET", self._objects.whole, headers=headers)


def _require(response: BaseHTTPResponse, status: HTTPStatus) -> None:
    if response.status == status:
        return
    is_momentary = response.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    if is_momentary and response.status != HTTPStatus.NOT_IMPLEMENTED:
        raise error_for(None, response.status, "trying what the store can do")
    detail = f"answered {response.status}, should be {status.value}"
    is_refusal = response.status >= HTTPStatus.BAD_REQUEST
    raise ShortcomingError(Outcome.MISSING if is_refusal else Outcome.WRONG, detail)
