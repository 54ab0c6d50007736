"""What RSM asks of a store of objects."""

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from services.api.errors import CorruptSegmentError, RemoteStorageError, RetriableRemoteStorageError

# A small first chunk brings the first byte early, large ones after it cost the least per byte.
FIRST_CHUNK_BYTES = 16 * 1024
CHUNK_BYTES = 1024 * 1024

# As long as a chunk takes, nobody looks whether the reader is still there.
_CHUNK_S = 2.0


def require_reaches(end: int, object_size_bytes: int, what: str) -> None:
    """Raise CorruptSegmentError where an object has no byte at `end`, which was once written."""
    if end >= object_size_bytes:
        raise CorruptSegmentError(f"{what}: the object has {object_size_bytes} bytes only")


def read_chunks(
    read: Callable[[int], bytes],
    size_bytes: int,
    what: str,
    now: Callable[[], float] = time.monotonic,
) -> Generator[bytes, None, None]:
    """Chunks of `size_bytes` in all from `read(at most so many bytes)`.

    Of a store that drips they are smaller: what comes in _CHUNK_S, as fast as the one before came.

    Raises:
        RetriableRemoteStorageError: `read` came to its end before that.
    """
    left = size_bytes
    limit = FIRST_CHUNK_BYTES
    while left:
        began_s = now()
        chunk = read(min(limit, left))
        if not chunk:
            missing = f"{what}: the body ended {left} of {size_bytes} bytes early"
            raise RetriableRemoteStorageError(missing)
        left -= len(chunk)
        limit = _limit_after(len(chunk), now() - began_s)
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
        etag: what the store calls its content; changes with it.
        modified_ms: when it was written, by the store's clock.
    """

    key: str
    size_bytes: int
    etag: str
    modified_ms: int


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload in parts that is not complete; no reader sees it.

    Attributes:
        begun_ms: of an upload that was listed: when it began, by the store's clock.
    """

    key: str
    upload_id: str
    begun_ms: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an upload, as it is to be written.

    Attributes:
        number: counts from 1.
        offset: of the object's bytes, at which it begins.
        crc: the crc32c that its bytes had when they came, which the store holds it to; None: nobody
            knows it.
    """

    number: int
    offset: int
    data: memoryview
    crc: int | None = None


@dataclass(frozen=True, slots=True)
class UploadedPart:
    """A part that the store has taken; `number` counts from 1."""

    number: int
    etag: str
    crc32c: int


class NoAnswerError(Exception):
    """The cause of an error after which nobody can tell whether the store did what was asked, or
    will do it yet. Never leaves RSM but as such a cause."""


def had_no_answer(error: RemoteStorageError) -> bool:
    """Whether what failed with `error` may still take effect: the store has not said no."""
    return isinstance(error.__cause__, NoAnswerError)


class StorageBackend(Protocol):
    """A store of objects under keys. Thread-safe.

    Every method raises RetriableRemoteStorageError where the store cannot be reached, throttles or
    fails for the moment, and RemoteStorageError where it fails for good. A missing bucket or root
    directory is never reported as a missing object.
    """

    def check(self) -> None:
        """Return if objects can be kept here; else the error says which store and what is wrong."""
        ...

    def check_and_get(self, key: str) -> bytes:
        """`check`, and `get` of a small object that must be there, in one request."""
        ...

    def put(self, key: str, data: bytes | memoryview, crc: int | None = None) -> None:
        """Write an object, all or nothing; overwrites. `crc`: as a Part's."""
        ...

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write an object unless the key is taken; False: it is, by another object, and this one
        will not be there. One of several callers wins.

        On a store without such a request it is checked before the write instead, so that callers
        at the same moment may all win and the last one's object stays.

        Of what it raises, had_no_answer tells whether the object may be written yet.
        """
        ...

    def begin_upload(self, key: str) -> Upload:
        """Begin an object that comes in parts."""
        ...

    def upload_part(self, upload: Upload, part: Part) -> UploadedPart:
        """Write a part; parts may come in any order, at once.

        Raises:
            RetriableRemoteStorageError: also where its bytes are not those of its crc.
        """
        ...

    def complete_upload(self, upload: Upload, parts: Sequence[UploadedPart]) -> None:
        """Make the object of all its parts, in order of their numbers; overwrites."""
        ...

    def abort_upload(self, upload: Upload) -> None:
        """End an upload and free its parts. Idempotent. No part may be under way."""
        ...

    def get(self, key: str) -> bytes:
        """Read a whole object of at most MAX_SMALL_OBJECT_BYTES.

        Raises:
            RemoteResourceNotFoundError: there is no such object.
            CorruptSegmentError: it is larger, and so none that we wrote.
        """
        ...

    def fetch(self, key: str, start: int, end: int) -> Generator[bytes, None, None]:
        """Stream the bytes from `start` to `end`, both inclusive, in chunks of at most 1 MiB.

        The first chunk is small, so that it comes early. Nothing is asked of the store before the
        first chunk is taken; closing the iterator ends the read. Where a store breaks off in the
        middle, a backend may go on from the next byte, for as long as the caller waits.

        Raises:
            RemoteResourceNotFoundError: there is no such object.
            CorruptSegmentError: the object ends before `end`; callers ask for what was written.
            RetriableRemoteStorageError: fewer bytes came than the store has.
            RemoteStorageError: the store sends something else than this range.
        """
        ...

    def list_keys(self, prefix: str) -> Iterator[str]:
        """The keys that begin with `prefix`, in no promised order."""
        ...

    def list_objects(self, prefix: str, after: str) -> Iterator[StoredObject]:
        """The objects whose keys begin with `prefix` and follow `after`, in order of keys."""
        ...

    def describe(self, key: str) -> StoredObject | None:
        """One object as list_objects has it; None where there is none."""
        ...

    def list_uploads(self, prefix: str) -> Iterator[Upload]:
        """The unfinished uploads whose keys begin with `prefix`, in no promised order."""
        ...

    def delete(self, keys: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        """Delete up to MAX_DELETE_KEYS objects; answer the keys that may still be there, and why.

        Idempotent: a key without an object counts as deleted. Never raises.
        """
        ...
