"""What RSM asks of a store of objects."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from services.api.errors import RemoteStorageError

MAX_DELETE_KEYS = 1000
MAX_SMALL_OBJECT_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload in parts that is not complete; no reader sees it."""

    key: str
    upload_id: str


@dataclass(frozen=True, slots=True)
class UploadedPart:
    """A part that the store has taken; `number` counts from 1."""

    number: int
    etag: str
    crc32c: int


class StorageBackend(Protocol):
    """A store of objects under keys. Thread-safe.

    Every method raises RetriableRemoteStorageError where the store cannot be reached, throttles or
    fails for the moment, and RemoteStorageError where it fails for good. A missing bucket or root
    directory is never reported as a missing object.
    """

    def check(self) -> None:
        """Return if objects can be kept here; else the error says which store and what is wrong."""
        ...

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Write an object, all or nothing; overwrites."""
        ...

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write an object unless the key is taken; False: it is. One of several callers wins.

        On a store without such a request it is checked before the write instead, so that callers
        at the same moment may all win and the last one's object stays.
        """
        ...

    def begin_upload(self, key: str) -> Upload:
        """Begin an object that comes in parts."""
        ...

    def upload_part(
        self, upload: Upload, number: int, offset: int, data: memoryview
    ) -> UploadedPart:
        """Write the part that begins at byte `offset`; parts may come in any order, at once."""
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
        """
        ...

    def fetch(self, key: str, start: int, end: int) -> Iterator[bytes]:
        """Stream the bytes from `start` to `end`, both inclusive, in chunks of at most 1 MiB.

        The first chunk is small, so that it comes early. Nothing is asked of the store before the
        first chunk is taken; closing the iterator ends the read.

        Raises:
            RemoteResourceNotFoundError: there is no such object.
            CorruptSegmentError: the object ends before `end`; callers ask for what was written.
            RetriableRemoteStorageError: fewer bytes came than the store has.
        """
        ...

    def list_keys(self, prefix: str) -> Iterator[str]:
        """The keys that begin with `prefix`, in no promised order."""
        ...

    def list_uploads(self, prefix: str) -> Iterator[Upload]:
        """The unfinished uploads whose keys begin with `prefix`."""
        ...

    def delete(self, keys: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        """Delete up to MAX_DELETE_KEYS objects; answer the keys that may still be there, and why.

        Idempotent: a key without an object counts as deleted. Never raises.
        """
        ...
