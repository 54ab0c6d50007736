"""Store objects as files below a directory."""

import errno
import os
import re
import secrets
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from services.api.errors import (
    CorruptSegmentError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    StoreAccessDeniedError,
    StoreNotFoundError,
)
from services.rsm.backends.kinds import LocationEntry, Opening, StoreKind
from services.rsm.backends.protocol import (
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

# Separates a key from an upload id in the name of an unfinished file; no key contains it.
_MARK = "~"
# Longer than any of ours, and no part of a path.
_UPLOAD_ID = re.compile(r"[0-9a-f]{1,64}")
# Objects have records: nothing for all users of the machine. A group may read, for backups.
_FILE_MODE = 0o640
_DIRECTORY_MODE = 0o750
_RETRIABLE_ERRNO = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ESTALE})


class FilesystemStorage:
    """A StorageBackend in which each key is a path below `root`, a directory that must exist.

    An object appears by rename or link, after its bytes and before its directory are synced to
    disk. It exists whole or not at all, and survives a crash once the write returns. An unfinished
    object is the file <key>~<upload id> beside it. Directories are never removed. Only
    RSM's user and group can read files and directories.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def check_and_get(self, key: str) -> bytes:
        if not self._root.is_dir():
            raise StoreNotFoundError(self._without_root())
        if not os.access(self._root, os.R_OK | os.W_OK | os.X_OK):
            raise StoreAccessDeniedError(
                f"directory {str(self._root)!r} may not be read and written by RSM; correct its "
                "owner or mode, or RSM_DIRECTORY"
            )
        return self.get(key)

    def put(self, key: str, data: bytes | memoryview, crc: int | None = None) -> None:
        if crc is not None:
            require_crc(data, crc, key)
        with self._errors(f"writing {key}"):
            os.replace(self._write_aside(key, data), self._path(key))
            self._sync_directories(key)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        with self._errors(f"writing {key}"):
            aside = self._write_aside(key, data)
            try:
                is_new = self._link(aside, key)
            finally:
                aside.unlink()
            if not is_new:
                return False
            self._sync_directories(key)
            return True

    def put_if_match(self, key: str, data: bytes, etag: str) -> bool:
        found = self.describe(key)
        if found is None or found.etag != etag:
            return False
        self.put(key, data)
        return True

    def begin_upload(self, key: str) -> Upload:
        upload = Upload(key, secrets.token_hex(8))
        with self._errors(f"beginning {key}"):
            self._make_directories(self._path(key).parent)
            self._aside(upload).touch(_FILE_MODE, exist_ok=False)
        return upload

    def upload_part(self, upload: Upload, part: Part) -> UploadedPart:
        crc = require_crc(part.data, part.crc, f"part {part.number} of {upload.key}")
        with self._still_begun(f"writing {upload.key}"), self._aside(upload).open("r+b") as file:
            file.seek(part.offset)
            file.write(part.data)
        return UploadedPart(part.number, "", crc)

    def complete_upload(self, upload: Upload, parts: Sequence[UploadedPart]) -> None:
        del parts  # Each was written at its place.
        with self._still_begun(f"completing {upload.key}"):
            aside = self._aside(upload)
            with aside.open("r+b") as file:
                os.fsync(file.fileno())
            os.replace(aside, self._path(upload.key))
            self._sync_directories(upload.key)

    def abort_upload(self, upload: Upload) -> None:
        if _UPLOAD_ID.fullmatch(upload.upload_id) is None:
            return  # No upload has such an id.
        with self._errors(f"ending the upload of {upload.key}"):
            self._unlink(self._aside(upload))

    def get(self, key: str) -> bytes:
        with self._errors(f"reading {key}"), self._path(key).open("rb") as file:
            data = file.read(MAX_SMALL_OBJECT_BYTES + 1)
        if len(data) > MAX_SMALL_OBJECT_BYTES:
            raise CorruptSegmentError(f"reading {key}: over {MAX_SMALL_OBJECT_BYTES} bytes")
        return data

    def fetch(self, key: str, start: int, end: int) -> Generator[bytes, None, None]:
        what = f"reading {key} from {start} to {end}"
        with self._errors(what), self._path(key).open("rb", buffering=0) as file:
            require_reaches(end, os.fstat(file.fileno()).st_size, what)
            file.seek(start)
            yield from read_chunks(file.read, end - start + 1, what)

    def presign(self, key: str, valid_s: int) -> SignedUrl | None:
        return None

    def list_objects(self, prefix: str, after: str = "") -> Iterator[StoredObject]:
        for key in self._names(prefix):
            if _MARK not in key and key > after and (stored := self._stored(key)) is not None:
                yield stored

    def describe(self, key: str) -> StoredObject | None:
        return self._stored(key)

    def _stored(self, key: str) -> StoredObject | None:
        with self._errors(f"describing {key}"):
            os.stat(self._root)
            try:
                stat = os.stat(self._path(key))
            except FileNotFoundError:
                return None
        etag = f"{stat.st_ino:x}-{stat.st_mtime_ns:x}-{stat.st_size:x}"
        return StoredObject(key, stat.st_size, etag, stat.st_mtime_ns // 1_000_000)

    def list_uploads(self, prefix: str) -> Iterator[Upload]:
        for name in self._names(prefix):
            key, mark, upload_id = name.partition(_MARK)
            if mark and (stored := self._stored(name)) is not None:
                yield Upload(key, upload_id, stored.modified_ms)

    def delete(self, keys: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        failures: dict[str, RemoteStorageError] = {}
        for key in keys:
            try:
                with self._errors(f"deleting {key}"):
                    self._unlink(self._path(key))
            except RemoteStorageError as e:
                failures[key] = e
        return failures

    def _path(self, key: str) -> Path:
        return self._root / key

    def _aside(self, upload: Upload) -> Path:
        return self._path(f"{upload.key}{_MARK}{upload.upload_id}")

    def _write_aside(self, key: str, data: bytes | memoryview) -> Path:
        aside = self._aside(self.begin_upload(key))
        try:
            with aside.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            aside.unlink()
            raise
        return aside

    def _make_directories(self, folder: Path) -> None:
        """Make a directory below the root, and those above it; the root itself must exist."""
        if folder == self._root:
            os.stat(folder)
            return
        try:
            folder.mkdir(_DIRECTORY_MODE, exist_ok=True)
        except FileNotFoundError:
            self._make_directories(folder.parent)
            folder.mkdir(_DIRECTORY_MODE, exist_ok=True)

    def _link(self, aside: Path, key: str) -> bool:
        """Link the object to the file written aside; return False if the object exists already."""
        with self._errors(f"making {key} by a hard link"):
            try:
                os.link(aside, self._path(key))
            except FileExistsError:
                return False
        return True

    def _unlink(self, path: Path) -> None:
        """Remove a file if it exists. Without the root this fails, since the file may exist."""
        os.stat(self._root)
        path.unlink(missing_ok=True)

    def _names(self, prefix: str) -> Iterator[str]:
        """Yield the relative paths of files that begin with `prefix`, in order of keys.

        The order holds because no directory of segments has both files and directories.
        """
        with self._errors(f"listing {prefix}"):
            os.stat(self._root)
            top = self._path(prefix.rpartition("/")[0])
            for folder, folders, files in os.walk(top, onerror=_unless_gone):
                folders.sort()
                for file in sorted(files):
                    name = Path(folder, file).relative_to(self._root).as_posix()
                    if name.startswith(prefix):
                        yield name

    def _sync_directories(self, key: str) -> None:
        """Make the entry of `key` durable, and those of its directories, which may be new."""
        for folder in self._path(key).parents:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if folder == self._root:
                return

    @contextmanager
    def _still_begun(self, what: str) -> Iterator[None]:
        """Translate errors as _errors does; a missing file is an upload that another has ended."""
        try:
            with self._errors(what):
                yield
        except RemoteResourceNotFoundError as e:
            raise RetriableRemoteStorageError(f"{what}: the upload has ended") from e

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Translate an OSError raised inside, by its number."""
        try:
            yield
        except OSError as e:
            number = errno.errorcode.get(e.errno or 0, "unknown error")
            text = f"{what}: the file system answered {number}"
            if isinstance(e, FileNotFoundError) and self._root.is_dir():
                raise RemoteResourceNotFoundError(text) from e
            if e.errno in _RETRIABLE_ERRNO:
                raise RetriableRemoteStorageError(text) from e
            if not self._root.is_dir():
                raise StoreNotFoundError(f"{text}; {self._without_root()}") from e
            if isinstance(e, PermissionError):
                text += f"; correct owner or mode below directory {str(self._root)!r}"
                raise StoreAccessDeniedError(text) from e
            raise RemoteStorageError(text) from e

    def _without_root(self) -> str:
        root = str(self._root)
        return f"there is no such directory {root!r}; mount or create it, or correct RSM_DIRECTORY"


def _unless_gone(error: OSError) -> None:
    """Raise the error unless the directory is gone.

    An unreadable directory would count as empty, and its objects as deleted.
    """
    if not isinstance(error, FileNotFoundError):
        raise error


class FilesystemKind(StoreKind):
    """A directory that must exist."""

    needs = ("directory",)

    def place(self, entry: LocationEntry) -> tuple[str, ...]:
        return (str((entry.directory or Path()).resolve()), entry.prefix)

    def describe(self, entry: LocationEntry) -> str:
        return f"prefix {entry.prefix!r} of directory {str(entry.directory)!r}"

    def open(self, entry: LocationEntry, opening: Opening) -> FilesystemStorage:
        return FilesystemStorage(entry.directory or Path())
