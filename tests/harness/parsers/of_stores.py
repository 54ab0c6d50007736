"""Read fuzzed objects and answers of a store: manifests, custom metadata, markers, S3's XML."""

import gzip
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import Any
from uuid import UUID

from minio.credentials.credentials import Credentials
from urllib3 import BaseHTTPResponse, HTTPConnectionPool, HTTPResponse, PoolManager, Retry
from urllib3.exceptions import MaxRetryError

from services.api.errors import CorruptSegmentError, InvalidRequestError, RemoteStorageError
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.remote_storage_manager import FileDigest, IndexType, LogDigest
from services.api.segment_objects import segment_object_name
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    SegmentLeaderEpoch,
)
from services.api.validation import INT32_MAX, INT64_MAX
from services.rsm.backends.protocol import Part, Upload, UploadedPart
from services.rsm.backends.s3 import S3Storage
from services.rsm.backends.s3_credentials import FixedCredentials
from services.rsm.backends.s3_http import S3Target
from services.rsm.layout import CustomMetadata, Manifest, segment_keys
from services.workflows.deployment_state import head_from_bytes, topics_from_bytes
from tests.harness.parsers.target import Target
from tests.harness.stores import keys_in

_TP = TopicIdPartition(UUID(int=1 << 100), "orders", 3)
_SEGMENT = RemoteLogSegmentMetadata(
    remote_log_segment_id=RemoteLogSegmentId(_TP, UUID(int=2 << 100)),
    start_offset=10,
    end_offset=19,
    max_timestamp_ms=1_000,
    broker_id=1,
    event_timestamp_ms=2_000,
    segment_size_in_bytes=100,
    segment_leader_epochs=(SegmentLeaderEpoch(0, 10), SegmentLeaderEpoch(1, 15)),
    state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
    custom_metadata=b"\x00",
)
_DIGEST = FileDigest(100, 7)
_MANIFEST = Manifest(
    _SEGMENT, "00c0ffee00c0ffee", 5, LogDigest(_DIGEST, (7,)), dict.fromkeys(IndexType, _DIGEST)
)
_STATE_HEAD = (
    b'{"deployment_id": "c0ffee00-0000-4000-8000-000000000000", "changes": 7, "kept_at_ms": 1, '
    b'"slot": "a", "parts": 1, "is_settled": false, "version": 1}'
)
_STATE_PART = gzip.compress(
    b'{"topic_id": "c0ffee00-0000-4000-8000-000000000000", "topic": "orders", "settings": '
    b'{"retention.ms": "1"}, "settings_revision": 1, "log_starts": {"0": 5}, "marked": {"1": 3}}',
    mtime=0,
)


def _read_state_head(data: bytes) -> None:
    head = head_from_bytes(data)
    assert head.slot in {"a", "b"}


def _read_state_part(data: bytes) -> None:
    for topic in topics_from_bytes("topics-a-0", data):
        assert all(isinstance(each, int) for each in (*topic.log_starts, *topic.marked))


def _read_manifest(data: bytes) -> None:
    manifest = Manifest.from_bytes(data, "key")
    assert Manifest.from_bytes(manifest.to_bytes(), "key") == manifest
    assert 0 <= manifest.log.size_bytes <= INT32_MAX
    assert 0 <= manifest.metadata.end_offset <= INT64_MAX
    assert segment_object_name("p/", segment_keys("p/", manifest.metadata).manifest) is not None
    _read_custom_metadata(manifest.custom_metadata(1).to_bytes())


def _read_custom_metadata(data: bytes) -> None:
    assert CustomMetadata.from_bytes(data).to_bytes() == data


def _custom_metadata() -> Sequence[bytes]:
    made = _MANIFEST.custom_metadata(1).to_bytes()
    return [made, b"\x02" + made[1:], made[:-1]]


def _read_key(data: bytes) -> None:
    key = data.decode("utf-8", "surrogateescape")
    name = segment_object_name("tier/", key)
    if name is not None:
        assert 0 <= name.partition <= INT32_MAX
        assert 0 <= name.start_offset <= INT64_MAX


def _keys() -> Sequence[bytes]:
    keys = segment_keys("tier/", _SEGMENT)
    return [each.encode() for each in (keys.manifest, keys.log("00c0ffee00c0ffee"))]


_MOST_ANSWERS = 8
_STATUSES = (200, 206, 204, 301, 400, 403, 404, 409, 412, 416, 429, 500, 503)


class OneAnswer:
    """Give each request the same answer, for a bounded number of requests."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self._status, self._headers, self._body = status, headers, body
        self.requests = 0

    def urlopen(self, method: str, url: str, **named: Any) -> BaseHTTPResponse:
        self.requests += 1
        if self.requests > _MOST_ANSWERS:
            raise MaxRetryError(HTTPConnectionPool("store"), url)
        return HTTPResponse(
            BytesIO(self._body),
            headers=self._headers,
            status=self._status,
            preload_content=named.get("preload_content", True),
            request_method=method,
            retries=named.get("retries"),
        )


class _Pool(HTTPConnectionPool):
    def __init__(self, answer: OneAnswer) -> None:
        super().__init__("store")
        self._answer = answer

    def urlopen(self, method: str, url: str, *_: Any, **named: Any) -> BaseHTTPResponse:
        return self._answer.urlopen(method, url, **named)


class Pools(PoolManager):
    def __init__(self, answer: OneAnswer) -> None:
        super().__init__(retries=Retry(0))
        self._answer = answer

    def urlopen(self, method: str, url: str, *_: Any, **named: Any) -> Any:
        return self._answer.urlopen(method, url, **named)

    def connection_from_url(self, url: str, pool_kwargs: object = None) -> HTTPConnectionPool:
        return _Pool(self._answer)


_UPLOAD = Upload("tier/key", "id")
_OPERATIONS: Sequence[Callable[[S3Storage], object]] = (
    lambda s3: list(keys_in(s3, "tier/")),
    lambda s3: list(s3.list_objects("tier/", "tier/a")),
    lambda s3: list(s3.matching_uploads("tier/")),
    lambda s3: s3.delete(["a", "b"]),
    lambda s3: s3.begin_upload("tier/key"),
    lambda s3: s3.upload_part(_UPLOAD, Part(1, 0, memoryview(b"data"))),
    lambda s3: s3.complete_upload(_UPLOAD, [UploadedPart(1, "etag", 7)]),
    lambda s3: s3.abort_upload(_UPLOAD),
    lambda s3: s3.put("tier/key", b"data"),
    lambda s3: s3.put_if_none_match("tier/key", b"data"),
    lambda s3: s3.get("tier/key"),
    lambda s3: b"".join(s3.fetch("tier/key", 0, 3)),
    lambda s3: s3.describe("tier/key"),
    lambda s3: s3.check_and_get("tier/key"),
)


def _read_s3_answer(data: bytes) -> None:
    """Take the operation and the status from the first bytes, then headers, then the body."""
    if len(data) < 2:
        return
    head, _, body = data[2:].partition(b"\n\n")
    headers = {}
    for line in head.decode("latin-1").split("\n"):
        name, separator, value = line.partition(": ")
        if separator and name.isascii() and name.isprintable() and "\r" not in value:
            headers[name] = value
    answer = OneAnswer(_STATUSES[data[1] % len(_STATUSES)], headers, body)
    _OPERATIONS[data[0] % len(_OPERATIONS)](storage_over(answer))


def storage_over(answer: OneAnswer) -> S3Storage:
    """Return a storage that gets the answer to each of its requests."""
    keys = FixedCredentials(Credentials("key", "secret"))
    target = S3Target("store:1", False, "us-east-1", "bucket", keys, False)
    return S3Storage(Pools(answer), target)


_XML = b"content-type: application/xml\n\n<?xml version='1.0' encoding='UTF-8'?>"
_BODIES = (
    b"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t"
    b"</NextContinuationToken><Contents><Key>tier/b</Key><LastModified>2026-01-02T03:04:05.678Z"
    b'</LastModified><ETag>"e"</ETag><Size>4</Size></Contents></ListBucketResult>',
    b"<ListBucketResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'></ListBucketResult>",
    b"<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>k</NextKeyMarker>"
    b"<NextUploadIdMarker>u</NextUploadIdMarker><Upload><Key>tier/k</Key><UploadId>u</UploadId>"
    b"<Initiated>2026-01-02T03:04:05.678Z</Initiated></Upload></ListMultipartUploadsResult>",
    b"<DeleteResult><Deleted><Key>a</Key></Deleted><Error><Key>b</Key><Code>SlowDown</Code>"
    b"</Error></DeleteResult>",
    b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>",
    b"<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>",
    b"<Error><Code>NoSuchKey</Code><Message>m</Message><Resource>r</Resource>"
    b"<RequestId>1</RequestId><HostId>h</HostId></Error>",
)
_OBJECT = (
    b"etag: e\ncontent-range: bytes 0-3/4\ncontent-length: 4\n"
    b"last-modified: Fri, 02 Jan 2026 03:04:05 GMT\n\ndata"
)


def _s3_answers() -> Sequence[bytes]:
    pairs = ((0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (6, 5), (10, 6), (7, 6))
    of_xml = [bytes([op, 6 if body == 6 else 0]) + _XML + _BODIES[body] for op, body in pairs]
    return [*of_xml, *(bytes([op, op == 11]) + _OBJECT for op in (5, 8, 9, 10, 11, 12))]


TARGETS = (
    Target("state_head", _read_state_head, (CorruptSegmentError,), lambda: [_STATE_HEAD]),
    Target("state_part", _read_state_part, (CorruptSegmentError,), lambda: [_STATE_PART]),
    Target("manifest", _read_manifest, (CorruptSegmentError,), lambda: [_MANIFEST.to_bytes()]),
    Target("custom_metadata", _read_custom_metadata, (InvalidRequestError,), _custom_metadata),
    Target("object_key", _read_key, (), _keys),
    Target("s3_answer", _read_s3_answer, (RemoteStorageError,), _s3_answers),
)
