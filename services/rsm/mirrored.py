"""Read a location from its mirror while its own store does not answer."""

import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

from prometheus_client import Counter

from services.api.errors import (
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    StoreAccessDeniedError,
    StoreNotFoundError,
)
from services.rsm.backends.protocol import (
    Part,
    SignedUrl,
    StorageBackend,
    StoredObject,
    Upload,
    UploadedPart,
)
from services.rsm.deadline import at_most

FAILS_FOR_S = 10.0
"""How long a store must have answered with nothing but errors before its mirror is read."""

_TRY_S = 2.0
"""How long a store that is away is waited for."""
_TRY_AGAIN_S = 5.0
"""How long after its last error a store that is away is asked again by a read."""

MIRROR_READS = Counter(
    "sediment_rsm_mirror_reads",
    "Objects that were read from a mirror, because the location's own store did not answer.",
)
_AWAY = (RetriableRemoteStorageError, StoreNotFoundError, StoreAccessDeniedError)
_log = logging.getLogger(__name__)


class Failover:
    """Know whether a store is away: it has answered with nothing but errors for FAILS_FOR_S.

    Any answer ends that. The readiness check asks the current location once a second; another one
    is asked by a read if nothing else has. Thread-safe: each attribute is replaced as a whole.
    """

    def __init__(self, place: str, now_s: Callable[[], float] = time.monotonic) -> None:
        self._place = place
        self._now_s = now_s
        self._failing_since_s: float | None = None
        self._asked_at_s = 0.0
        self.error: RemoteStorageError | None = None
        self.is_away = False

    def succeeded(self) -> None:
        self._failing_since_s = None
        if self.is_away:
            self.is_away = False
            _log.warning("%s answers again and is read again", self._place)

    def failed(self, error: RemoteStorageError) -> None:
        """Note an error; one about the object itself shows that the store answers."""
        if not isinstance(error, _AWAY):
            self.succeeded()
            return
        self.error, since_s = error, self._failing_since_s
        self._asked_at_s = self._now_s()
        if since_s is None:
            self._failing_since_s = self._now_s()
        elif not self.is_away and self._now_s() - since_s >= FAILS_FOR_S:
            self.is_away = True
            _log.error("%s does not answer, its mirror is read: %s", self._place, error)

    def asks_again(self) -> bool:
        """Return whether the caller is to ask the store, which is away: one of many, each time."""
        if not self.is_away or self._now_s() < self._asked_at_s + _TRY_AGAIN_S:
            return False
        self._asked_at_s = self._now_s()
        return True


class MirroredBackend:
    """A StorageBackend that is read from a mirror, with the same keys, while the first is away.

    Writes, listings and descriptions are the first's alone. An object that only the mirror has is
    not served while the first answers: it may be one that was deleted.
    """

    def __init__(
        self, first: StorageBackend, mirror: StorageBackend, failover: Failover, *, deletes: bool
    ) -> None:
        """Combine two stores; `deletes`: objects are deleted from the mirror, too."""
        self.first = first
        self.mirror = mirror
        self.failover = failover
        self._deletes = deletes

    def check_and_get(self, key: str) -> bytes:
        if not self.failover.is_away:
            return self._read(
                key, lambda: self.first.check_and_get(key), lambda: self.mirror.get(key)
            )
        try:
            with at_most(_TRY_S):
                data = self.first.check_and_get(key)
        except RemoteStorageError as e:
            self.failover.failed(e)
            if not self.failover.is_away:
                raise
            MIRROR_READS.inc()
            return self.mirror.get(key)
        self.failover.succeeded()
        return data

    def get(self, key: str) -> bytes:
        return self._read(key, lambda: self.first.get(key), lambda: self.mirror.get(key))

    def fetch(self, key: str, start: int, end: int) -> Generator[bytes, None, None]:
        position = start
        if not self._is_away(key):
            try:
                for chunk in self.first.fetch(key, start, end):
                    self.failover.succeeded()
                    position += len(chunk)
                    yield chunk
            except RemoteStorageError as e:
                self.failover.failed(e)
                if not self.failover.is_away:
                    raise
            else:
                return
        MIRROR_READS.inc()
        try:
            yield from self.mirror.fetch(key, position, end)
        except RemoteResourceNotFoundError as e:
            raise self._not_there_yet(e) from e

    def presign(self, key: str, valid_s: int) -> SignedUrl | None:
        return (self.mirror if self.failover.is_away else self.first).presign(key, valid_s)

    def delete(self, keys: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        failures = self.first.delete(keys)
        return {**self.mirror.delete(keys), **failures} if self._deletes else failures

    def put(self, key: str, data: bytes | memoryview, crc: int | None = None) -> None:
        self.first.put(key, data, crc)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return self.first.put_if_absent(key, data)

    def put_if_match(self, key: str, data: bytes, etag: str) -> bool:
        return self.first.put_if_match(key, data, etag)

    def begin_upload(self, key: str) -> Upload:
        return self.first.begin_upload(key)

    def upload_part(self, upload: Upload, part: Part) -> UploadedPart:
        return self.first.upload_part(upload, part)

    def complete_upload(self, upload: Upload, parts: Sequence[UploadedPart]) -> None:
        self.first.complete_upload(upload, parts)

    def abort_upload(self, upload: Upload) -> None:
        self.first.abort_upload(upload)

    def list_objects(self, prefix: str, after: str = "") -> Iterator[StoredObject]:
        return self.first.list_objects(prefix, after)

    def describe(self, key: str) -> StoredObject | None:
        return self.first.describe(key)

    def list_uploads(self, prefix: str) -> Iterator[Upload]:
        return self.first.list_uploads(prefix)

    def _is_away(self, key: str) -> bool:
        """Return whether to read the mirror; if it is time, ask the first for a byte before."""
        if self.failover.asks_again():
            try:
                with at_most(_TRY_S):
                    b"".join(self.first.fetch(key, 0, 0))
            except RemoteStorageError as e:
                self.failover.failed(e)
            else:
                self.failover.succeeded()
        return self.failover.is_away

    def _read(
        self, key: str, of_first: Callable[[], bytes], of_mirror: Callable[[], bytes]
    ) -> bytes:
        if not self._is_away(key):
            try:
                data = of_first()
            except RemoteStorageError as e:
                self.failover.failed(e)
                if not self.failover.is_away:
                    raise
            else:
                self.failover.succeeded()
                return data
        MIRROR_READS.inc()
        try:
            return of_mirror()
        except RemoteResourceNotFoundError as e:
            raise self._not_there_yet(e) from e

    def _not_there_yet(self, missing: RemoteResourceNotFoundError) -> RemoteStorageError:
        error = self.failover.error or missing
        return type(error)(f"{error}; its mirror does not have the object yet: {missing}")
