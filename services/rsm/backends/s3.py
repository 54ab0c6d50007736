"""Store objects in a bucket of an S3 store."""

import logging
import secrets
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from datetime import timedelta
from http import HTTPStatus
from itertools import chain
from typing import TypeVar
from urllib.parse import urlsplit

from crc32c import crc32c
from minio import Minio
from minio.datatypes import Object
from urllib3 import BaseHTTPResponse, PoolManager, Retry

from services.api.errors import (
    CorruptSegmentError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    StoreAccessDeniedError,
    StoreNotFoundError,
)
from services.rsm.active_copies import Waiter
from services.rsm.backends.protocol import (
    MAX_SMALL_OBJECT_BYTES,
    Part,
    SignedUrl,
    StoredObject,
    Upload,
    UploadedPart,
)
from services.rsm.backends.s3_answers import BoundedPools
from services.rsm.backends.s3_http import (
    S3Target,
    SignedRequests,
    checksum,
    read_body,
    require_object,
    require_range,
)
from services.rsm.backends.s3_retry import Repeats, RequestTimeout, error_for, resumed, s3_errors
from services.rsm.locations import Location
from services.rsm.probe import REQUIRED, Capability, Step, StoreProbe

_log = logging.getLogger(__name__)
T = TypeVar("T")


def http_pool(
    connections: int,
    connect_timeout_ms: int,
    read_timeout_ms: int,
    retries: int,
    waiter: Waiter,
    pools: type[BoundedPools] = BoundedPools,
) -> PoolManager:
    """Create the process's only pool of connections, which alone retries its requests.

    A request is retried at most `retries` times, with exponential back-off, while its caller waits:
    if no connection was made, or if its method is GET, HEAD, PUT or DELETE. A POST that begins or
    completes an upload is retried if the store is too busy (429, 503), never if the POST may have
    worked, or deletes: ObjectDeletes retries deletes. `waiter` ends all retries when the service
    stops.
    """
    return pools(
        maxsize=connections,
        timeout=RequestTimeout(connect_timeout_ms / 1000, read_timeout_ms / 1000, waiter),
        retries=Repeats(
            total=retries,
            # S3 stores do not redirect; the login page of a proxy would count as a response.
            redirect=False,
            backoff_factor=0.2,
            backoff_jitter=0.2,
            backoff_max=2,
            respect_retry_after_header=False,
            status_forcelist=(429, 500, 502, 503, 504),
            raise_on_status=False,
            waiter=waiter,
        ),
    )


class S3Storage:
    """A StorageBackend in one bucket, which must exist."""

    def __init__(
        self,
        http: PoolManager,
        target: S3Target,
        prefix: str = "",
        *,
        writes: bool = True,
    ) -> None:
        """Set up access to the bucket; send no request yet.

        Args:
            prefix: where probe objects are written. Keys are used unchanged.
            writes: False: send no probes, since they write to the store.
        """
        self._target = target
        self._bucket = target.bucket
        self._probe_prefix = prefix
        self.requests = SignedRequests(http, target)
        self._client = Minio(
            target.endpoint,
            credentials=target.credentials,
            secure=target.secure,
            region=target.region,
            http_client=http,
        )
        # Only signs: a signature covers the host, which readers may reach by another name.
        public = urlsplit(target.public_url)
        self._public_client = Minio(
            public.netloc,
            credentials=target.credentials,
            secure=public.scheme == "https",
            region=target.region,
            http_client=http,
        )
        self._honours_if_none_match: bool | None = None
        self._finds_uploads_by_prefix: bool | None = None if writes else False

    @property
    def target(self) -> S3Target:
        """Return the bucket, and what signs requests to it."""
        return self._target

    def check(self) -> None:
        what = f"bucket {self._bucket!r} at {self._target.endpoint}"
        if not self._ask(what, lambda: self._client.bucket_exists(self._bucket)):
            text = f"{what}: there is no such bucket; create it, or correct RSM_BUCKET"
            raise StoreNotFoundError(text)

    def check_and_get(self, key: str) -> bytes:
        # The response to a GET distinguishes a missing bucket from a missing object.
        return self._get(key, f"GET {self._target.named(key)} at {self._target.endpoint}")

    def put(self, key: str, data: bytes | memoryview, crc: int | None = None) -> None:
        self.requests.put(key, data, crc)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        if self._honours_if_none_match is None and not self.learn_if_none_match():
            _log.warning(
                "%s does not support If-None-Match; reading before each PUT", self._target.endpoint
            )
        if self._honours_if_none_match:
            return self.requests.put_if_none_match(key, data)
        if key in self.list_keys(key):
            return False
        self.requests.put(key, data)
        return True

    def begin_upload(self, key: str) -> Upload:
        return self.requests.begin_upload(key)

    def upload_part(self, upload: Upload, part: Part) -> UploadedPart:
        return self.requests.upload_part(upload, part)

    def complete_upload(self, upload: Upload, parts: Sequence[UploadedPart]) -> None:
        self.requests.complete_upload(upload, sorted(parts, key=lambda part: part.number))

    def abort_upload(self, upload: Upload) -> None:
        self.requests.abort_upload(upload)

    def get(self, key: str) -> bytes:
        return self._get(key, f"GET {self._target.named(key)}")

    def _get(self, key: str, what: str) -> bytes:
        def get() -> bytes:
            response = self._client.get_object(self._bucket, key)
            try:
                require_object(response, what)
                return response.read(MAX_SMALL_OBJECT_BYTES + 1)
            finally:
                _release(response)

        data = self._ask(what, get)
        if len(data) > MAX_SMALL_OBJECT_BYTES:
            raise CorruptSegmentError(f"{what}: over {MAX_SMALL_OBJECT_BYTES} bytes")
        return data

    def fetch(self, key: str, start: int, end: int) -> Generator[bytes, None, None]:
        def get(position: int, retries: Retry) -> Generator[bytes, None, None]:
            return self._get_range(key, position, end, retries)

        what = f"GET {self._target.named(key)} from {start} to {end}"
        return resumed(get, start, self.requests.retries, what)

    def _get_range(
        self, key: str, start: int, end: int, retries: Retry
    ) -> Generator[bytes, None, None]:
        what = f"GET {self._target.named(key)} from {start} to {end}"
        response = self.requests.get_range(key, start, end, retries)
        try:
            require_object(response, what)
            require_range(response, start, end, what)
            yield from read_body(response, end - start + 1, what)
        finally:
            _release(response)

    def presign(self, key: str, valid_s: int) -> SignedUrl | None:
        left_s = self._target.credentials.left_s()
        if left_s < 1:
            raise RetriableRemoteStorageError(
                "the S3 credentials expire in less than a second, so no URL can be signed; retry"
            )
        valid_s = int(min(valid_s, left_s))
        url = self._public_client.presigned_get_object(
            self._bucket, key, expires=timedelta(seconds=valid_s)
        )
        return SignedUrl(url, valid_s)

    def list_keys(self, prefix: str) -> Iterator[str]:
        for item in self._list(prefix):
            if item.object_name is not None:
                yield item.object_name

    def list_objects(self, prefix: str, after: str) -> Iterator[StoredObject]:
        for item in self._list(prefix, after):
            if item.object_name is not None and not item.is_dir:
                yield _stored(item.object_name, item)

    def _list(self, prefix: str, after: str = "") -> Iterator[Object]:
        """List objects, and continue after the last one if the credentials change meanwhile."""
        credentials = self._target.credentials
        while True:
            used = credentials.retrieve()
            try:
                with s3_errors(f"listing {self._target.named(prefix)}"):
                    for item in self._client.list_objects(
                        self._bucket, prefix, recursive=True, start_after=after or None
                    ):
                        yield item
                        after = item.object_name or after
                return
            except StoreAccessDeniedError:
                if not credentials.renew(used):
                    raise

    def describe(self, key: str) -> StoredObject | None:
        def stat() -> StoredObject:
            return _stored(key, self._client.stat_object(self._bucket, key))

        try:
            return self._ask(f"HEAD {self._target.named(key)}", stat)
        except RemoteResourceNotFoundError:
            return None

    def list_uploads(self, prefix: str) -> Iterator[Upload]:
        if self._lists_uploads_by_prefix():
            return self.requests.list_uploads(prefix)
        return self._uploads_of(prefix)

    def _uploads_of(self, prefix: str) -> Iterator[Upload]:
        """List the uploads of a prefix in a store that matches whole keys, each once."""
        seen: set[Upload] = set()
        for upload in chain(self.requests.list_uploads(prefix), self.requests.list_uploads("")):
            if upload.key.startswith(prefix) and upload not in seen:
                seen.add(upload)
                yield upload

    def delete(self, keys: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        try:
            return self.requests.delete_many(keys)
        except RemoteStorageError as e:
            return dict.fromkeys(keys, e)

    def remove(self, key: str) -> None:
        """Delete an object of a probe, also in a store without multi-delete; log a failure."""
        try:
            self.requests.delete(key)
        except RemoteResourceNotFoundError:
            return
        except RemoteStorageError as e:
            _log.warning("%s is left behind: %s", key, e)

    def _ask(self, what: str, request: Callable[[], T]) -> T:
        """Send a request through the SDK.

        If the store refuses the credentials, and they have changed, it is sent once more.
        """
        used = self._target.credentials.retrieve()
        try:
            with s3_errors(what):
                return request()
        except StoreAccessDeniedError:
            if not self._target.credentials.renew(used):
                raise
        with s3_errors(what):
            return request()

    def learn_if_none_match(self) -> bool:
        """Find out with an object of RSM's own whether the store honours If-None-Match."""
        key = f"{self._probe_prefix}.probe-{secrets.token_hex(8)}"
        try:
            self._honours_if_none_match = self.requests.honours_if_none_match(key)
        finally:
            self.remove(key)
        return self._honours_if_none_match

    def _lists_uploads_by_prefix(self) -> bool:
        """Return whether the store lists uploads by the beginning of a key.

        One probe with an upload of RSM's own finds out. If nothing may be written, the result is
        False. MinIO takes a prefix for a whole key, and an empty one for all uploads of the bucket
        begun since MinIO started, in no order of keys.
        """
        if self._finds_uploads_by_prefix is None:
            stem = f"{self._probe_prefix}.probe-{secrets.token_hex(8)}"
            upload = self.requests.begin_upload(f"{stem}.upload")
            try:
                self._finds_uploads_by_prefix = upload in self.requests.list_uploads(stem)
            finally:
                self._try_abort(upload)
            if not self._finds_uploads_by_prefix:
                endpoint = self._target.endpoint
                _log.info(
                    "%s cannot list uploads by prefix; listing those of the whole bucket", endpoint
                )
        return self._finds_uploads_by_prefix

    def _try_abort(self, upload: Upload) -> None:
        try:
            self.requests.abort_upload(upload)
        except RemoteStorageError as e:
            _log.warning(
                "the upload of %s cannot be aborted and stays in the store: %s", upload.key, e
            )


def _stored(key: str, item: Object) -> StoredObject:
    modified = item.last_modified
    if item.size is None or modified is None:
        text = f"{key}: not an answer of an S3 store: it has no size or no time"
        raise RetriableRemoteStorageError(text)
    return StoredObject(key, item.size, item.etag or "", int(modified.timestamp() * 1000))


def _release(response: BaseHTTPResponse) -> None:
    """Return the connection to the pool if its body was read to the end; else close it."""
    response.close()
    response.release_conn()


class S3Probe(StoreProbe):
    """Probe a bucket, also below the requests of StorageBackend."""

    required = REQUIRED

    def __init__(self, location: Location, storage: S3Storage) -> None:
        super().__init__(location)
        self._storage = storage
        self.requests = storage.requests

    def steps(self) -> dict[Capability, Step]:
        return {
            **super().steps(),
            Capability.IF_NONE_MATCH: self._learn_if_none_match,
            Capability.RANGE_PAST_THE_END: self._range_past_the_end,
            Capability.CHECKSUMS: self._checksums,
            Capability.ETAGS: self._etags,
        }

    def remove(self, key: str) -> None:
        self._storage.remove(key)

    def _learn_if_none_match(self) -> None:
        if not self._storage.learn_if_none_match():
            raise RemoteStorageError("the store ignores or refuses the header")

    def _range_past_the_end(self) -> None:
        size = len(self.content)
        headers = {"Range": f"bytes={size}-{size + 9}"}
        response = self.requests.request("GET", self.key("whole"), headers=headers)
        _require(response, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)

    def _checksums(self) -> None:
        body = self.content
        response = self.requests.request(
            "PUT", self.key("scratch"), body=body, headers=checksum(crc32c(body) ^ 1)
        )
        if response.status < HTTPStatus.MULTIPLE_CHOICES:
            raise RemoteStorageError("the store accepted bytes with a wrong crc32c")
        _require(response, HTTPStatus.BAD_REQUEST)

    def _etags(self) -> None:
        put = self.requests.request("PUT", self.key("scratch"), body=self.content)
        _require(put, HTTPStatus.OK)
        got = self.requests.request("GET", self.key("scratch"))
        _require(got, HTTPStatus.OK)
        written, read = put.headers.get("etag", ""), got.headers.get("etag", "")
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
