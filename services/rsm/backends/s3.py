"""Objects in a bucket of an S3 store."""

import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence

from minio import Minio
from minio.deleteobjects import DeleteError, DeleteObject
from urllib3 import BaseHTTPResponse, PoolManager, Retry, Timeout

from services.api.errors import RemoteStorageError
from services.rsm.backends.chunks import read_chunks, require_reaches
from services.rsm.backends.protocol import MAX_SMALL_OBJECT_BYTES, Upload, UploadedPart
from services.rsm.backends.s3_errors import error_for, s3_errors
from services.rsm.backends.s3_requests import S3Target, SignedRequests

_log = logging.getLogger(__name__)


def http_pool(
    connections: int, connect_timeout_ms: int, read_timeout_ms: int, retries: int
) -> PoolManager:
    """The one pool of connections of a process, and the one owner of retries on this path.

    A request is repeated `retries` times at most, with exponential back-off, where no connection
    came about or where it is GET, HEAD, PUT or DELETE; a POST that may have worked never is.
    """
    return PoolManager(
        maxsize=connections,
        timeout=Timeout(connect=connect_timeout_ms / 1000, read=read_timeout_ms / 1000),
        retries=Retry(
            total=retries,
            backoff_factor=0.2,
            backoff_jitter=0.2,
            backoff_max=2,
            respect_retry_after_header=False,
            status_forcelist=(429, 500, 502, 503, 504),
            raise_on_status=False,
        ),
    )


class S3Storage:
    """StorageBackend in one bucket. The bucket is not created here."""

    def __init__(self, http: PoolManager, target: S3Target, prefix: str = "") -> None:
        """`prefix` is where check() may write; keys are used as they are given."""
        self._target = target
        self._bucket = target.bucket
        self._probe_prefix = prefix
        self._requests = SignedRequests(http, target)
        self._client = Minio(
            target.endpoint,
            access_key=target.credentials.access_key,
            secret_key=target.credentials.secret_key,
            session_token=target.credentials.session_token,
            secure=target.secure,
            region=target.region,
            http_client=http,
        )
        self._honours_if_none_match: bool | None = None

    def check(self) -> None:
        what = f"bucket {self._bucket!r} at {self._target.endpoint}"
        with s3_errors(what):
            exists = self._client.bucket_exists(self._bucket)
        if not exists:
            raise RemoteStorageError(f"{what}: there is no such bucket")
        self._has_put_if_absent()

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._requests.put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        if not self._has_put_if_absent() and key in self.list_keys(key):
            return False
        return self._requests.put_if_none_match(key, data)

    def begin_upload(self, key: str) -> Upload:
        return self._requests.begin_upload(key)

    def upload_part(
        self, upload: Upload, number: int, offset: int, data: memoryview
    ) -> UploadedPart:
        del offset  # The store joins parts by their numbers.
        return self._requests.upload_part(upload, number, data)

    def complete_upload(self, upload: Upload, parts: Sequence[UploadedPart]) -> None:
        self._requests.complete_upload(upload, sorted(parts, key=lambda part: part.number))

    def abort_upload(self, upload: Upload) -> None:
        self._requests.abort_upload(upload)

    def get(self, key: str) -> bytes:
        with s3_errors(f"GET {key}"):
            response = self._client.get_object(self._bucket, key)
            try:
                data = response.read(MAX_SMALL_OBJECT_BYTES + 1)
            finally:
                _release(response)
        if len(data) > MAX_SMALL_OBJECT_BYTES:
            raise RemoteStorageError(f"GET {key}: over {MAX_SMALL_OBJECT_BYTES} bytes")
        return data

    def fetch(self, key: str, start: int, end: int) -> Iterator[bytes]:
        what, size = f"GET {key} from {start} to {end}", end - start + 1
        with s3_errors(what):
            response = self._client.get_object(self._bucket, key, offset=start, length=size)
            try:
                if response.status != 206 and start > 0:
                    raise RemoteStorageError(f"{what}: the object store ignored the range")
                object_size = _object_size_bytes(response)
                if object_size is not None:
                    require_reaches(end, object_size, what)
                yield from read_chunks(response.read, size, what)
            finally:
                _release(response)

    def list_keys(self, prefix: str) -> Iterator[str]:
        with s3_errors(f"listing {prefix}"):
            for item in self._client.list_objects(self._bucket, prefix, recursive=True):
                if item.object_name is not None:
                    yield item.object_name

    def list_uploads(self, prefix: str) -> Iterator[Upload]:
        return self._requests.list_uploads(prefix)

    def delete(self, keys: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        objects = [DeleteObject(key) for key in keys]
        try:
            with s3_errors(f"deleting {len(keys)} objects"):
                failures = list(self._client.remove_objects(self._bucket, objects))
        except RemoteStorageError as e:
            return dict.fromkeys(keys, e)
        return _by_key(failures, keys)

    def _has_put_if_absent(self) -> bool:
        """Whether the store honours If-None-Match; asked once, of an object of our own."""
        if self._honours_if_none_match is None:
            key = f"{self._probe_prefix}.probe-{secrets.token_hex(8)}"
            self._requests.put(key, b"probe")
            self._honours_if_none_match = not self._requests.put_if_none_match(key, b"probe")
            self.delete([key])
            if not self._honours_if_none_match:
                _log.warning("%s ignores If-None-Match: checking first", self._target.endpoint)
        return self._honours_if_none_match


def _by_key(failures: list[DeleteError], keys: Sequence[str]) -> dict[str, RemoteStorageError]:
    """The store's refusals by key; a refusal without a key is one of the whole request."""
    found: dict[str, RemoteStorageError] = {}
    for failure in failures:
        status = 503 if failure.code in ("InternalError", "ServiceUnavailable") else 200
        error = error_for(failure.code, status, f"deleting {failure.name or 'objects'}")
        if failure.name is None:
            return dict.fromkeys(keys, error)
        if failure.code != "NoSuchKey":
            found[failure.name] = error
    return found


def _object_size_bytes(response: BaseHTTPResponse) -> int | None:
    """Size of the whole object by the head of an answer to a GET; None: it does not say."""
    if response.status == 206:
        size = response.headers.get("content-range", "").rpartition("/")[2]
    else:
        size = response.headers.get("content-length", "")
    return int(size) if size.isdecimal() else None


def _release(response: BaseHTTPResponse) -> None:
    """Back to the pool if read to its end; else closed, since bytes are still under way on it."""
    response.close()
    response.release_conn()
