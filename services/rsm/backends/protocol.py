"""Define the requests that RSM sends to an object store."""

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from crc32c import crc32c

from services.api.errors import CorruptSegmentError, RemoteStorageError, RetriableRemoteStorageError

# Small first chunks bring the first bytes early; large chunks after them cost least per byte.
FIRST_CHUNK_BYTES = 16 * 1024
_GROWTH = 4
CHUNK_BYTES = 1024 * 1024

# While a chunk is read, a reader that has left is not noticed.
_CHUNK_S = 2.0


def require_reaches(end: int, object_size_bytes: int, what: str) -> None:
    """Raise CorruptSegmentError if an object has no byte at `end`, which was once written."""
    if end >= object_size_bytes:
        raise CorruptSegmentError(f"{what}: the object has only {object_size_bytes} bytes")


def require_crc(data: bytes | memoryview, crc: int | None, what: str) -> int:
    """Return the crc32c of `data`; raise RetriableRemoteStorageError if it is not `crc`."""
    found = crc32c(data)
    if crc not in (None, found):
        raise RetriableRemoteStorageError(f"writing {what}: crc32c is {found:08x}, not {crc:08x}")
    return found


def read_chunks(
    read: Callable[[int], bytes],
    size_bytes: int,
    what: str,
    now: Callable[[], float] = time.monotonic,
) -> Generator[bytes, None, None]:
    """Yield chunks of `size_bytes` in all from `read(at most so many bytes)`.

    From a slow store chunks are smaller: what arrives in _CHUNK_S at the speed of the chunk before.

    Raises:
        RetriableRemoteStorageError: `read` ended early.
    """
    left = size_bytes
    limit = most = FIRST_CHUNK_BYTES
    while left:
        began_s = now()
        chunk = read(min(limit, left))
        if not chunk:
            missing = f"{what}: the body ended {left} of {size_bytes} bytes early"
            raise RetriableRemoteStorageError(missing)
        left -= len(chunk)
        most = min(_GROWTH * most, CHUNK_BYTES)
        limit = min(_limit_after(len(chunk), now() - began_s), most)
        yield chunk


def _limit_after(size_bytes: int, took_s: float) -> int:
    if took_s * CHUNK_BYTES <= size_bytes * _CHUNK_S:
        return CHUNK_BYTES
    return max(1, int(size_bytes * _CHUNK_S / took_s))


MAX_DELETE_KEYS = 1000
MAX_SMALL_OBJECT_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as the store lists it.

    Attributes:
        etag: the store's identifier of the content; changes with the content.
        modified_ms: when the object was written, by the store's clock.
    """

    key: str
    size_bytes: int
    etag: str
    modified_ms: int


@dataclass(frozen=True, slots=True)
class Upload:
    """An unfinished multipart upload, invisible to readers.

    Attributes:
        begun_ms: when a listed upload began, by the store's clock; else 0.
    """

    key: str
    upload_id: str
    begun_ms: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an upload, ready to be written.

    Attributes:
        number: counts from 1.
        offset: position of the part's first byte in the object.
        crc: the crc32c of the bytes when they arrived, which the store checks. None if unknown.
    """

    number: int
    offset: int
    data: memoryview
    crc: int | None = None


@dataclass(frozen=True, slots=True)
class UploadedPart:
    """A part that the store has accepted; `number` counts from 1."""

    number: int
    etag: str
    crc32c: int


@dataclass(frozen=True, slots=True)
class SignedUrl:
    """A URL with which anybody can read one object; a secret."""

    url: str = field(repr=False)
    valid_s: int


class NoAnswerError(Exception):
    """Mark an error after which the request may have taken effect, or may yet do so.

    Only ever the cause of another error within RSM; `cause` is what was raised, if anything was.
    """

    def __init__(self, cause: BaseException | None = None) -> None:
        super().__init__()
        self.__cause__ = cause


def had_no_answer(error: RemoteStorageError) -> bool:
    """Return whether the request that failed with `error` may still take effect."""
    return isinstance(error.__cause__, NoAnswerError)


class StorageBackend(Protocol):
    """A store of objects under keys. Thread-safe.

    Every method raises RetriableRemoteStorageError if the store cannot be reached, throttles or
    fails temporarily, and RemoteStorageError if it fails permanently. A missing bucket or root
    directory is never reported as a missing object.
    """

    def check_and_get(self, key: str) -> bytes:
        """Do `get`, and check that objects can be stored here; the error names store and fault."""

    def put(self, key: str, data: bytes | memoryview, crc: int | None = None) -> None:
        """Write an object, all or nothing; overwrites. `crc`: as in Part."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write an object unless the key is taken; return False if another object has the key.

        On False the object is not written. Of several callers one wins. If the store has no such
        request, the key is checked before the write: callers at the same moment may then all win,
        and the last one's object stays.

        After an error, had_no_answer says whether the object may still be written.
        """

    def put_if_match(self, key: str, data: bytes, etag: str) -> bool:
        """Write an object over the one with this etag; return False if it is gone, or another.

        On False the object is not written. If the store has no such request, the etag is compared
        before the write: another writer at the same moment may then be overwritten.
        """

    def begin_upload(self, key: str) -> Upload:
        """Begin an object that is sent in parts."""

    def upload_part(self, upload: Upload, part: Part) -> UploadedPart:
        """Write a part; parts may be sent in any order, concurrently.

        Raises:
            RetriableRemoteStorageError: also if the bytes do not match the part's crc.
        """

    def complete_upload(self, upload: Upload, parts: Sequence[UploadedPart]) -> None:
        """Assemble the object from all its parts, in order of their numbers; overwrites."""

    def abort_upload(self, upload: Upload) -> None:
        """Abort an upload and free its parts. Idempotent. No part may be in flight."""

    def get(self, key: str) -> bytes:
        """Read a whole object of at most MAX_SMALL_OBJECT_BYTES.

        Raises:
            RemoteResourceNotFoundError: there is no such object.
            CorruptSegmentError: the object is larger, so RSM did not write it.
        """

    def fetch(self, key: str, start: int, end: int) -> Generator[bytes, None, None]:
        """Stream the bytes from `start` to `end`, both inclusive, in chunks of at most 1 MiB.

        The first chunk is small, so that it arrives early. No request is sent before the first
        chunk is taken; closing the iterator ends the read. If the body breaks off, a backend may
        resume at the next byte, as long as the client waits.

        Raises:
            RemoteResourceNotFoundError: there is no such object.
            CorruptSegmentError: the object ends before `end`; callers request only bytes once
                written.
            RetriableRemoteStorageError: fewer bytes arrived than the store has.
            RemoteStorageError: the store sent something other than this range.
        """

    def presign(self, key: str, valid_s: int) -> SignedUrl | None:
        """Return a URL that reads an object for at most `valid_s`; None if this store has none.

        It is valid for less if the credentials that sign it expire earlier. Sends no request for
        the object, which need not exist.
        """

    def list_objects(self, prefix: str, after: str = "") -> Iterator[StoredObject]:
        """Yield the objects whose keys begin with `prefix` and follow `after`, in order of keys."""

    def describe(self, key: str) -> StoredObject | None:
        """Return one object as list_objects does; None if it does not exist."""

    def list_uploads(self, prefix: str) -> Iterator[Upload]:
        """Yield the unfinished uploads whose keys begin with `prefix`, in no promised order."""

    def delete(self, keys: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        """Delete up to MAX_DELETE_KEYS objects; return the reason for each that may still exist.

        Idempotent: a key without an object counts as deleted. Never raises.
        """
