"""The cache's directory, opened and ours alone: its files are written whole or not at all."""

import fcntl
import os
import secrets
import stat
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from services.api.failpoints import failpoint
from services.rlm.reading.index_cache.index_file import (
    HEADER_BYTES,
    DamagedFileError,
    check_index_file,
    header_of,
    index_bytes,
    is_name,
    run_of_unfinished,
    unfinished_name,
)

_DIRECTORY_MODE = 0o700
_FILE_MODE = 0o600


class DirectoryBusyError(OSError):
    """Another process uses the directory."""


class CacheDirectory:
    """Everything is done relative to the opened directory, so that one which was removed, or put in
    its place, is never taken for it. Thread-safe; the directory stays open, and locked, for as long
    as somebody has this object.

    The lock is on the directory itself and ends with the process, however that ends.

    Raises:
        DirectoryBusyError: says what to do.
        OSError: the directory cannot be made, opened or locked.
    """

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True, mode=_DIRECTORY_MODE)
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        # Not closed before the last user is gone: the number would soon be another file's.
        weakref.finalize(self, os.close, self._fd)
        self._run = secrets.token_hex(4)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise DirectoryBusyError(
                f"{path}: another process keeps its indexes there: give each RLM a "
                "RLM_REMOTE_LOG_INDEX_FILE_CACHE_DIR of its own"
            ) from e

    def is_in_place(self) -> bool:
        """Whether it still is what its path leads to."""
        with suppress(OSError):
            return os.path.samestat(os.stat(self.path), os.fstat(self._fd))
        return False

    def read(self, name: str) -> bytes:
        """The index that the file of this name holds.

        Raises:
            FileNotFoundError: there is no such file.
            DamagedFileError: it is none of this cache's, or is damaged.
            OSError: it cannot be read.
        """
        try:
            with open(name, "rb", opener=self._open_to_read) as file:
                header = file.read(HEADER_BYTES)
                size_bytes = index_bytes(header)
                file_bytes = os.fstat(file.fileno()).st_size
                # Before the rest is read: what is damaged may be of any length.
                if file_bytes != HEADER_BYTES + size_bytes:
                    raise DamagedFileError(
                        f"{file_bytes} bytes are not a header and the {size_bytes} it tells of"
                    )
                index = file.read(size_bytes)
        except IsADirectoryError as e:
            raise DamagedFileError("it is a directory") from e
        check_index_file(name, header, index)
        return index

    def _open_to_read(self, name: str, flags: int) -> int:
        more = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        return os.open(name, flags | more, dir_fd=self._fd)

    def write(self, name: str, index: bytes) -> None:
        """Put the file there as a whole; one of a name is written by one thread at a time. Not
        synced: what a power cut tears is seen to be torn.

        Raises:
            OSError: it is not there, but what was there before.
        """
        unfinished = unfinished_name(name, self._run)
        try:
            self._write_to(unfinished, header_of(name, index), index)
            os.replace(unfinished, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except OSError:
            with suppress(OSError):
                os.unlink(unfinished, dir_fd=self._fd)
            raise
        failpoint("index_cache.file_renamed")

    def _write_to(self, unfinished: str, header: bytes, index: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(unfinished, flags, _FILE_MODE, dir_fd=self._fd)
        try:
            failpoint("index_cache.file_created")
            _write_all(fd, header)
            failpoint("index_cache.header_written")
            _write_all(fd, index)
        finally:
            os.close(fd)
        failpoint("index_cache.index_written")

    def remove(self, name: str) -> None:
        """
        Raises:
            OSError: it is still there.
        """
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._fd)

    def note_use(self, name: str, used_unix_s: float) -> None:
        """So that the next start knows; where that cannot be noted, it knows less."""
        with suppress(OSError):
            times = used_unix_s, used_unix_s
            os.utime(name, times, dir_fd=self._fd, follow_symlinks=False)

    def found(self) -> Iterator[tuple[str, int, float]]:
        """Name, size and last use, Unix seconds, of each of the cache's files; what a writer that
        was killed left unfinished is removed. All else is left alone.

        Raises:
            OSError: the directory cannot be read.
        """
        with os.scandir(self._fd) as entries:
            for entry in entries:
                if is_name(entry.name):
                    with suppress(OSError):
                        told = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(told.st_mode):
                            yield entry.name, told.st_size, told.st_mtime
                elif run_of_unfinished(entry.name) not in (None, self._run):
                    with suppress(OSError):
                        self.remove(entry.name)


def _write_all(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]
