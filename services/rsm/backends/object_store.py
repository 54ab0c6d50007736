"""Store objects in Google Cloud Storage or in Azure Blob Storage, by the library obstore."""

import logging
import secrets
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from threading import Lock
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import AzureStore, GCSStore

from services.api.errors import (
    CorruptSegmentError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.rsm.backends.object_store_errors import require_one_try, store_errors
from services.rsm.backends.parts_in_order import PartsInOrder
from services.rsm.backends.protocol import (
    FIRST_CHUNK_BYTES,
    MAX_SMALL_OBJECT_BYTES,
    Part,
    SignedUrl,
    StoredObject,
    Upload,
    UploadedPart,
    read_chunks,
    require_crc,
    require_reaches,
)

if TYPE_CHECKING:
    from obstore import BytesStream, ObjectMeta, UpdateVersion, WritableFile

# Parts of one upload on their way, each a copy in the library's memory.
_PARTS_IN_FLIGHT = 2
# Below every key of RSM, so that a list of it is empty.
_NO_SUCH_FOLDER = "~no-such-folder"

_log = logging.getLogger(__name__)


class ObjectStorage:
    """A StorageBackend in one bucket or container, which must exist.

    The library writes the parts of an object in their order, and lists no unfinished uploads: those
    of a process that was killed are left to the store's lifecycle. A request takes no longer than
    the timeouts and retries of the store allow; it is not cut short if its client leaves.
    """

    def __init__(self, store: GCSStore | AzureStore, bucket: str, part_size_bytes: int) -> None:
        """Use the bucket that `store` has; send no request yet.

        Args:
            bucket: names it in errors.
        """
        self._store = store
        self._bucket = bucket
        self._part_size_bytes = part_size_bytes
        self._writers: dict[str, _Writer] = {}
        self._lock = Lock()

    def check_and_get(self, key: str) -> bytes:
        return self.get(key)

    def put(self, key: str, data: bytes | memoryview, crc: int | None = None) -> None:
        require_crc(data, crc, self._named(key))
        with store_errors(f"writing {self._named(key)}"):
            obstore.put(self._store, key, data, use_multipart=False)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        what = f"writing {self._named(key)}"
        try:
            with store_errors(what):
                obstore.put(self._store, key, data, mode="create")
        except AlreadyExistsError as e:
            require_one_try(e, f"{what}: the key exists, perhaps from an earlier try")
            return False
        return True

    def put_if_match(self, key: str, data: bytes, etag: str) -> bool:
        what = f"writing {self._named(key)}"
        try:
            with store_errors(what):
                meta = obstore.head(self._store, key)
            if (meta["e_tag"] or "").strip('"') != etag:
                return False
            with store_errors(what):
                mode: UpdateVersion = {"e_tag": meta["e_tag"]}
                if meta["version"] is not None:
                    mode["version"] = meta["version"]
                obstore.put(self._store, key, data, mode=mode)
        except FileNotFoundError:
            self.describe(key)  # Raises if it is the bucket that is missing.
            return False
        except PreconditionError as e:
            require_one_try(e, f"{what}: it has changed, perhaps by an earlier try")
            return False
        return True

    def begin_upload(self, key: str) -> Upload:
        upload = Upload(key, secrets.token_hex(8))
        file = obstore.open_writer(
            self._store,
            key,
            buffer_size=self._part_size_bytes,
            max_concurrency=_PARTS_IN_FLIGHT,
        )
        with self._lock:
            # A copy: the library sends a part later, when the caller fills its buffer again.
            parts = PartsInOrder(lambda data: file.write(bytes(data)))
            self._writers[upload.upload_id] = _Writer(file, parts)
        return upload

    def upload_part(self, upload: Upload, part: Part) -> UploadedPart:
        what = f"writing part {part.number} of {self._named(upload.key)}"
        crc = require_crc(part.data, part.crc, what)
        with self._lock:
            writer = self._writers.get(upload.upload_id)
        if writer is None:
            raise RetriableRemoteStorageError(f"{what}: the upload has ended")
        with store_errors(what):
            writer.parts.write(part, what)
        return UploadedPart(part.number, "", crc)

    def complete_upload(self, upload: Upload, parts: Sequence[UploadedPart]) -> None:
        del parts  # They were written in their order.
        what = f"completing {self._named(upload.key)}"
        with self._lock:
            writer = self._writers.pop(upload.upload_id, None)
        if writer is None:
            raise RetriableRemoteStorageError(f"{what}: the upload has ended")
        try:
            with self._found(what), store_errors(what):
                writer.file.close()
        except RemoteResourceNotFoundError as e:
            raise RetriableRemoteStorageError(f"{what}: the upload has ended") from e

    def abort_upload(self, upload: Upload) -> None:
        with self._lock:
            writer = self._writers.pop(upload.upload_id, None)
        if writer is not None:
            with (
                store_errors(f"ending the upload of {self._named(upload.key)}"),
                # Nothing is found if the store, or a repeated request, has ended it.
                suppress(_Aborted, FileNotFoundError),
                writer.file,
            ):
                raise _Aborted

    def get(self, key: str) -> bytes:
        what = f"reading {self._named(key)}"
        with self._found(what), store_errors(what):
            result = obstore.get(self._store, key)
            if result.meta["size"] > MAX_SMALL_OBJECT_BYTES:
                raise CorruptSegmentError(f"{what}: over {MAX_SMALL_OBJECT_BYTES} bytes")
            return bytes(result.bytes())

    def fetch(self, key: str, start: int, end: int) -> Generator[bytes, None, None]:
        what = f"reading {self._named(key)} from {start} to {end}"
        with self._found(what), store_errors(what):
            result = obstore.get(self._store, key, options={"range": (start, end + 1)})
        require_reaches(end, result.meta["size"], what)
        if result.range != (start, end + 1):
            raise RemoteStorageError(f"{what}: the store sent {result.range}")
        body = _Body(result.stream(min_chunk_size=FIRST_CHUNK_BYTES), what)
        yield from read_chunks(body.read, end - start + 1, what)

    def presign(self, key: str, valid_s: int) -> SignedUrl | None:
        try:
            url = obstore.sign(self._store, "GET", key, timedelta(seconds=valid_s))
        except (BaseError, OSError) as e:
            # Of an access token, for example, nothing can be signed.
            _log.info("no URL of %s: %s", self._named(key), type(e).__name__)
            return None
        return SignedUrl(url, valid_s)

    def list_objects(self, prefix: str, after: str = "") -> Iterator[StoredObject]:
        folder = prefix.rpartition("/")[0] or None
        # The library lists whole folders. Begin just before the first key wanted.
        before = f"{prefix[:-1]}{chr(ord(prefix[-1]) - 1)}~" if prefix else ""
        stream = obstore.list(
            self._store, folder, offset=max(before, after) or None, chunk_size=1000
        )
        while True:
            with store_errors(f"listing {self._named(prefix)}"):
                page = next(stream, ())
            if not page:
                return
            for meta in page:
                # Some stores begin with the first key of the folder all the same.
                if meta["path"].startswith(prefix) and meta["path"] > after:
                    yield _stored(meta)
                elif meta["path"] > prefix and not meta["path"].startswith(prefix):
                    return

    def describe(self, key: str) -> StoredObject | None:
        what = f"describing {self._named(key)}"
        try:
            with self._found(what), store_errors(what):
                return _stored(obstore.head(self._store, key))
        except RemoteResourceNotFoundError:
            return None

    def list_uploads(self, prefix: str) -> Iterator[Upload]:
        """Yield nothing: the library cannot list them (StorageBackend.list_uploads)."""
        return iter(())

    def delete(self, keys: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        try:
            with store_errors(f"deleting from {self._named('')}"):
                obstore.delete(self._store, keys)
        except FileNotFoundError:
            # The others may be deleted or not; only single requests tell.
            return self._delete_each(keys)
        except RemoteStorageError as e:
            return dict.fromkeys(keys, e)
        return {}

    def _delete_each(self, keys: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        failures: dict[str, RemoteStorageError] = {}
        for key in keys:
            what = f"deleting {self._named(key)}"
            try:
                with self._found(what), store_errors(what):
                    obstore.delete(self._store, key)
            except RemoteResourceNotFoundError:
                continue
            except RemoteStorageError as e:
                failures[key] = e
        return failures

    @contextmanager
    def _found(self, what: str) -> Iterator[None]:
        """Translate the library's error for a missing object, if the bucket is there."""
        try:
            yield
        except FileNotFoundError as e:
            # For some requests a missing bucket has the same answer. A list always says so.
            with store_errors(what):
                next(obstore.list(self._store, _NO_SUCH_FOLDER, chunk_size=1), None)
            raise RemoteResourceNotFoundError(f"{what}: there is no such object") from e

    def _named(self, key: str) -> str:
        return f"{key} of bucket {self._bucket!r}" if key else f"bucket {self._bucket!r}"


@dataclass(frozen=True, slots=True)
class _Writer:
    """An unfinished object: the library's file, and the parts written to it."""

    file: "WritableFile"
    parts: PartsInOrder


class _Aborted(Exception):
    """Leaves the block of a file that must not become an object."""


class _Body:
    """The body of an answer, in pieces of any size."""

    def __init__(self, pieces: "BytesStream", what: str) -> None:
        self._pieces = pieces
        self._what = what
        self._left = memoryview(b"")

    def read(self, size_bytes: int) -> bytes:
        """Return `size_bytes` bytes, or fewer at the end of the body."""
        chunks, missing = list[memoryview](), size_bytes
        while missing:
            if not self._left:
                with store_errors(self._what):
                    piece = next(self._pieces, b"")
                if not piece:
                    break
                self._left = memoryview(piece)
            chunks.append(self._left[:missing])
            self._left = self._left[missing:]
            missing -= len(chunks[-1])
        return b"".join(chunks)


def _stored(meta: "ObjectMeta") -> StoredObject:
    etag = (meta["e_tag"] or "").strip('"')
    return StoredObject(
        meta["path"], meta["size"], etag, int(meta["last_modified"].timestamp() * 1000)
    )
