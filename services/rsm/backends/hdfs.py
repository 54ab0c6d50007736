"""Store objects as files in HDFS, by the library hdfs-native (the extra `hdfs`)."""

import asyncio
import re
import secrets
from collections.abc import Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock, Thread
from typing import Any, ClassVar, TypeVar

from hdfs_native import AsyncClient, AsyncFileReader, AsyncFileWriter, FileStatus, WriteOptions

from services.api.calls import current_call
from services.api.errors import (
    CorruptSegmentError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    StoreAccessDeniedError,
    StoreNotFoundError,
)
from services.rsm.backends.kinds import LocationEntry, Opening, StoreKind
from services.rsm.backends.parts_in_order import PartsInOrder
from services.rsm.backends.protocol import (
    MAX_SMALL_OBJECT_BYTES,
    NoAnswerError,
    Part,
    SignedUrl,
    StoredObject,
    Upload,
    UploadedPart,
    read_chunks,
    require_crc,
    require_reaches,
)
from services.rsm.deadline import require_wanted

# Separates a key from an upload id in the name of an unfinished file; no key contains it.
_MARK = "~"
_UPLOAD_ID = re.compile(r"[0-9a-f]{1,64}")
# Objects have records: nothing for all users of the cluster.
_FILE_MODE = 0o640
_DIRECTORY_MODE = 0o750
# What the library's text begins with: KIND("CLASS OF HADOOP", ...) or KIND("...").
_WORD = re.compile(r'(\w+)\((?:"(?:\w+\.)*([\w$]+)",)?')
_DENIED = frozenset(
    {
        *("AccessControlException", "AuthorizationException"),
        *("GSSAPIError", "NoSASLMechanism", "SASLError"),
    }
)
_RETRIABLE = frozenset(
    {
        # Too few data nodes, for example.
        *("IOException", "RetriableException", "SafeModeException", "StandbyException"),
        *("DSQuotaExceededException", "NSQuotaExceededException"),
        *("LeaseExpiredException", "NotReplicatedYetException"),
        *("BlocksNotFound", "ChecksumError", "DataTransferError", "OperationFailed"),
    }
)

# The library raises it once it has asked each name node and would wait before it asks again.
_CANNOT_WAIT = "PanicException"

T = TypeVar("T")


class HdfsStorage:
    """A StorageBackend in which each key is a path below `root`, a directory that must exist.

    An object is written to the file <key>~<upload id> beside it and appears by a rename, which the
    name node does whole or not at all, and without overwriting if it is told so. Directories are
    never removed. Each wait for HDFS ends after `timeout_s`, or at the caller's deadline.
    """

    def __init__(self, client: AsyncClient, root: str, timeout_s: float) -> None:
        """Use `root`, which has no slash at its end; send no request yet."""
        self._client = client
        self._root = root
        self._timeout_s = timeout_s
        self._writers: dict[str, _Writer] = {}
        self._lock = Lock()

    def check_and_get(self, key: str) -> bytes:
        return self.get(key)

    def put(self, key: str, data: bytes | memoryview, crc: int | None = None) -> None:
        self._write(key, data, crc, overwrite=True)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        try:
            self._write(key, data, None, overwrite=False)
        except FileExistsError:
            return False
        return True

    def put_if_match(self, key: str, data: bytes, etag: str) -> bool:
        found = self.describe(key)
        if found is None or found.etag != etag:
            return False
        self.put(key, data)
        return True

    def begin_upload(self, key: str) -> Upload:
        what = f"beginning {key}"
        upload = Upload(key, secrets.token_hex(8))
        try:
            file = self._create(upload, what, FileNotFoundError)
        except FileNotFoundError:
            self._require_root(what)
            folder = self._path(key).rpartition("/")[0]
            self._answer(self._client.mkdirs(folder, _DIRECTORY_MODE, create_parent=True), what)
            file = self._create(upload, what)
        parts = PartsInOrder(lambda data: self._answer(file.write(data), f"writing {key}"))
        with self._lock:
            self._writers[upload.upload_id] = _Writer(file, parts)
        return upload

    def upload_part(self, upload: Upload, part: Part) -> UploadedPart:
        what = f"part {part.number} of {upload.key}"
        crc = require_crc(part.data, part.crc, what)
        with self._lock:
            writer = self._writers.get(upload.upload_id)
        if writer is None:
            raise RetriableRemoteStorageError(f"writing {what}: the upload has ended")
        writer.parts.write(part, f"writing {what}")
        return UploadedPart(part.number, "", crc)

    def complete_upload(self, upload: Upload, parts: Sequence[UploadedPart]) -> None:
        del parts  # They were written in their order.
        self._complete(upload, overwrite=True)

    def abort_upload(self, upload: Upload) -> None:
        if _UPLOAD_ID.fullmatch(upload.upload_id) is None:
            return  # No upload has such an id.
        with self._lock:
            self._writers.pop(upload.upload_id, None)
        aside = self._aside(upload)
        self._answer(self._client.delete(aside), f"ending the upload of {upload.key}")

    def get(self, key: str) -> bytes:
        what = f"reading {key}"
        file = self._open(key, what)
        if len(file) > MAX_SMALL_OBJECT_BYTES:
            raise CorruptSegmentError(f"{what}: over {MAX_SMALL_OBJECT_BYTES} bytes")
        return self._answer(file.read(len(file)), what)

    def fetch(self, key: str, start: int, end: int) -> Generator[bytes, None, None]:
        what = f"reading {key} from {start} to {end}"
        file = self._open(key, what)
        require_reaches(end, len(file), what)
        file.seek(start)
        yield from read_chunks(
            lambda size_bytes: self._answer(file.read(size_bytes), what), end - start + 1, what
        )

    def presign(self, key: str, valid_s: int) -> SignedUrl | None:
        return None

    def list_objects(self, prefix: str, after: str = "") -> Iterator[StoredObject]:
        for status in self._files(prefix, after):
            if _MARK not in self._key(status):
                yield self._stored(status)

    def describe(self, key: str) -> StoredObject | None:
        what = f"describing {key}"
        try:
            status = self._answer(
                self._client.get_file_info(self._path(key)), what, FileNotFoundError
            )
        except FileNotFoundError:
            self._require_root(what)
            return None
        return None if status.isdir else self._stored(status)

    def list_uploads(self, prefix: str) -> Iterator[Upload]:
        for status in self._files(prefix, ""):
            key, mark, upload_id = self._key(status).partition(_MARK)
            if mark:
                yield Upload(key, upload_id, status.modification_time)

    def delete(self, keys: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        failures: dict[str, RemoteStorageError] = {}
        try:
            self._require_root("deleting")
        except RemoteStorageError as e:
            return dict.fromkeys(keys, e)
        for key in keys:
            try:
                self._answer(self._client.delete(self._path(key)), f"deleting {key}")
            except RemoteStorageError as e:
                failures[key] = e
        return failures

    def _write(
        self, key: str, data: bytes | memoryview, crc: int | None, *, overwrite: bool
    ) -> None:
        upload = self.begin_upload(key)
        try:
            self.upload_part(upload, Part(1, 0, memoryview(data), crc))
            self._complete(upload, overwrite=overwrite)
        except BaseException:
            with suppress(RemoteStorageError):
                self.abort_upload(upload)
            raise

    def _complete(self, upload: Upload, *, overwrite: bool) -> None:
        """Make the object appear; raise FileExistsError if the key is taken."""
        what = f"completing {upload.key}"
        with self._lock:
            writer = self._writers.pop(upload.upload_id, None)
        if writer is None:
            raise RetriableRemoteStorageError(f"{what}: the upload has ended")
        self._answer(writer.file.close(), what)
        rename = self._client.rename(self._aside(upload), self._path(upload.key), overwrite)
        self._answer(rename, what, FileExistsError)

    def _create(self, upload: Upload, what: str, *passed_on: type[OSError]) -> AsyncFileWriter:
        # Without overwrite, a request that the library sends again would fail.
        options = WriteOptions(permission=_FILE_MODE, overwrite=True, create_parent=False)
        return self._answer(self._client.create(self._aside(upload), options), what, *passed_on)

    def _open(self, key: str, what: str) -> AsyncFileReader:
        try:
            return self._answer(self._client.read(self._path(key)), what, FileNotFoundError)
        except FileNotFoundError as e:
            self._require_root(what)
            raise RemoteResourceNotFoundError(f"{what}: there is no such file") from e

    def _files(self, prefix: str, after: str) -> Iterator[FileStatus]:
        """Yield the files whose keys begin with `prefix` and follow `after`, in order of keys."""
        self._require_root(f"listing {prefix}")
        return self._files_in(self._path(prefix).rpartition("/")[0], prefix, after)

    def _files_in(self, folder: str, prefix: str, after: str) -> Iterator[FileStatus]:
        for status in self._answer(self._list(folder or "/"), f"listing {prefix}"):
            key = self._key(status)
            if status.isdir:
                below = f"{key}/"
                is_wanted = below.startswith(prefix) or prefix.startswith(below)
                if is_wanted and (below > after or after.startswith(below)):
                    yield from self._files_in(status.path, prefix, after)
            elif key.startswith(prefix) and key > after:
                yield status

    async def _list(self, folder: str) -> list[FileStatus]:
        """Return what is in one directory, in order of keys; nothing if it does not exist."""
        try:
            found = [each async for each in self._client.list_status(folder)]
        except FileNotFoundError:
            return []
        return sorted(found, key=lambda each: f"{each.path}/" if each.isdir else each.path)

    def _stored(self, status: FileStatus) -> StoredObject:
        etag = f"{status.modification_time:x}-{status.length:x}"
        return StoredObject(self._key(status), status.length, etag, status.modification_time)

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _key(self, status: FileStatus) -> str:
        return status.path[len(self._root) + 1 :]

    def _aside(self, upload: Upload) -> str:
        return self._path(f"{upload.key}{_MARK}{upload.upload_id}")

    def _require_root(self, what: str) -> None:
        root = self._root or "/"
        try:
            is_there = self._answer(self._client.get_file_info(root), what, FileNotFoundError).isdir
        except FileNotFoundError:
            is_there = False
        if not is_there:
            raise StoreNotFoundError(
                f"{what}: HDFS has no directory {root!r}; create it, or correct RSM_DIRECTORY"
            )

    def _answer(self, request: Coroutine[Any, Any, T], what: str, *passed_on: type[OSError]) -> T:
        """Send a request and wait for its answer; translate all errors but those passed on.

        A text of Hadoop has a stack trace: none goes into a message.
        """
        try:
            require_wanted()
        except RemoteStorageError:
            request.close()
            raise
        waiting = asyncio.run_coroutine_threadsafe(request, _loop())
        try:
            return waiting.result(min(self._timeout_s, current_call().left_s()))
        except passed_on:
            raise
        except BaseException as e:  # TimeoutError is an OSError.
            if not isinstance(e, OSError | RuntimeError) and type(e).__name__ != _CANNOT_WAIT:
                raise
            waiting.cancel()
            raise _error_for(e, what) from (e if isinstance(e, RuntimeError) else NoAnswerError(e))


@dataclass(frozen=True, slots=True)
class _Writer:
    """An unfinished file that this process writes."""

    file: AsyncFileWriter
    parts: PartsInOrder


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the loop on which all requests of this process wait."""
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, name="hdfs", daemon=True).start()
    return loop


def _error_for(error: BaseException, what: str) -> RemoteStorageError:
    if isinstance(error, FileNotFoundError):
        # Another has ended the upload; or the library sent a rename again whose answer was lost.
        return RetriableRemoteStorageError(f"{what}: the file is gone, perhaps by an earlier try")
    if not isinstance(error, RuntimeError):
        return RetriableRemoteStorageError(f"{what}: no answer from HDFS")
    found = _WORD.match(str(error))
    word = (found[2] or found[1]) if found else type(error).__name__
    text = f"{what}: HDFS answered {word}"
    if word in _DENIED:
        return StoreAccessDeniedError(
            f"{text}; correct the user that RSM is in HDFS, or what it may do in the directory"
        )
    return (RetriableRemoteStorageError if word in _RETRIABLE else RemoteStorageError)(text)


class HdfsKind(StoreKind):
    """HDFS: `endpoint` is HOST:PORT of a name node or the name of a name service."""

    needs = ("endpoint", "directory")
    options: ClassVar = {
        "config_dir": "directory with core-site.xml and hdfs-site.xml of the cluster. Else: that "
        "of HADOOP_CONF_DIR"
    }

    def place(self, entry: LocationEntry) -> tuple[str, ...]:
        return (entry.endpoint.lower(), _root(entry), entry.prefix)

    def describe(self, entry: LocationEntry) -> str:
        return f"prefix {entry.prefix!r} of directory {_root(entry)!r} of HDFS at {entry.endpoint}"

    def open(self, entry: LocationEntry, opening: Opening) -> HdfsStorage:
        settings, config_dir = opening.settings, entry.options.get("config_dir")
        # Of one address there is no other name node to ask.
        attempts = 0 if ":" in entry.endpoint else max(1, settings.retries)
        config = {"dfs.client.failover.max.attempts": str(attempts)}
        try:
            client = AsyncClient(f"hdfs://{entry.endpoint}", config, config_dir)
        except (OSError, RuntimeError, ValueError) as e:
            raise SystemExit(f"location {entry.id}: HDFS at {entry.endpoint}: {e}") from None
        return HdfsStorage(client, _root(entry).rstrip("/"), settings.read_timeout_ms / 1000)


def _root(entry: LocationEntry) -> str:
    return (entry.directory or Path("/")).as_posix()
