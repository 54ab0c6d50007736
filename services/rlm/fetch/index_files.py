"""Keep indexes in files of one directory, whose only state is the directory itself."""

import errno
import logging
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from crc32c import crc32c

from services.api.remote_storage_manager import IndexType
from services.common.failpoints import failpoint
from services.rlm.metrics import DAMAGED, EVICTIONS, FAILURES, FILE_BYTES, FILES

_log = logging.getLogger(__name__)

BLOCK_BYTES = 4096
MAX_FILES = 65_536
RETRY_AFTER_S = 10.0
"""The pause of disk accesses after a failure, seconds."""
_HEADER = Struct(">4sQI")
_MAGIC = b"SDX2"
"""Change it when check_index becomes stricter: the content of files is not checked again."""
_NAME = re.compile(
    rf"[0-9a-f]{{32}}\.(?:{'|'.join(kind.value.lower() for kind in IndexType)})"
    r"(?P<unfinished>\.[0-9a-f]{8}\.tmp)?"
)
_UNFINISHED_AFTER_S = 60.0
_SPARE_SHARE = 16
_LOCK_WAIT_S = 1.0
_MAX_REMOVAL_FAILURES = 8
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class DiskBreaker:
    """Pause accesses to the disk for a while after a failure. Thread-safe.

    Args:
        name: names the disk's use in log lines.
    """

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self._name = name
        self._clock = clock
        self._lock = threading.Lock()
        self._failed_s: float | None = None

    @property
    def is_open(self) -> bool:
        failed_s = self._failed_s
        return failed_s is not None and self._clock() - failed_s < RETRY_AFTER_S

    def add_failure(self, operation: str, error: OSError) -> None:
        FAILURES.labels(operation).inc()
        with self._lock:
            is_first = self._failed_s is None
            self._failed_s = self._clock()
        if is_first:
            _log.warning(
                "index cache %s: %s failed: %s; reads continue without these files, retrying "
                "every %d s",
                self._name,
                operation,
                error,
                RETRY_AFTER_S,
            )

    def end_failures(self) -> None:
        with self._lock:
            was_failing, self._failed_s = self._failed_s is not None, None
        if was_failing:
            _log.info("index cache %s: the disk works again", self._name)


@dataclass(frozen=True, slots=True)
class IndexFileLimits:
    """The limits of the files.

    Attributes:
        total_bytes: of all files, each counted in whole blocks of 4 KiB.
        ttl_s: how long an unused file stays; None if it stays until others need its room.
    """

    directory: Path
    total_bytes: int = 1024 * 1024 * 1024
    ttl_s: float | None = 900.0


class IndexFiles:
    """Keep indexes as files of one directory. Thread-safe; disk failures raise no error.

    A file's name is its key and its mtime is its last use, so that the directory is the only state
    and processes may share it. A file gets its name when it is complete; its checksum covers the
    name, too. Files are written one at a time, which keeps the count of bytes exact.
    """

    def __init__(
        self, limits: IndexFileLimits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits
        self._reads = DiskBreaker(f"{limits.directory} (reads)", clock)
        self._writes = DiskBreaker(f"{limits.directory} (writes)", clock)
        self._disk = threading.Lock()
        self._is_scanned = False
        self._files = 0
        self._bytes = 0
        self._used_lock = threading.Lock()
        self._used: dict[str, None] = {}

    def read(self, name: str) -> bytes | None:
        """Read an index; None if its file is missing or damaged."""
        if self._reads.is_open:
            return None
        try:
            index = self._read_file(name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError as e:
            DAMAGED.inc()
            _log.warning("index cache: removing damaged file %s: %s", name, e)
            self.remove([name], "damaged")
            return None
        except OSError as e:
            self._reads.add_failure("read", e)
            return None
        self._reads.end_failures()
        self.mark_used(name)
        return index

    def mark_used(self, name: str) -> None:
        """Mark an index as used; its file gets the new mtime with the next pass."""
        with self._used_lock:
            self._used.pop(name, None)
            self._used[name] = None

    def write(self, name: str, index: bytes) -> None:
        """Write an index if there is room and the disk works."""
        size_bytes = _charged_bytes(_HEADER.size + len(index))
        if self._writes.is_open or size_bytes > self._limits.total_bytes:
            return
        # A reader does not wait for a hanging disk: the index is then not stored.
        if not self._disk.acquire(timeout=_LOCK_WAIT_S):
            return
        try:
            if self._is_scanned:
                self._write(name, index, size_bytes)
                self._writes.end_failures()
        except OSError as e:
            self._writes.add_failure("write", e)
        finally:
            self._disk.release()

    def remove(self, names: Iterable[str], reason: str = "deleted") -> None:
        """Remove files; the next pass corrects the counts."""
        for name in names:
            self._unlink(name, reason)

    def _unlink(self, name: str, reason: str) -> bool:
        """Remove a file; return False if the disk fails."""
        try:
            os.unlink(self._limits.directory / name)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError as e:
            self._writes.add_failure("remove", e)
            return False
        EVICTIONS.labels(reason).inc()
        return True

    def maintain(self) -> None:
        """Make the directory if it is missing, and remove files that are old or too many."""
        if self._writes.is_open:
            return
        with self._disk:
            try:
                self._make_directory()
                self._trim(self._limits.total_bytes, MAX_FILES)
            except OSError as e:
                self._writes.add_failure("scan", e)

    def _make_directory(self) -> None:
        self._limits.directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _read_file(self, name: str) -> bytes:
        with open(self._limits.directory / name, "rb", opener=_open_to_read) as file:
            status = os.fstat(file.fileno())
            header = file.read(_HEADER.size) if stat.S_ISREG(status.st_mode) else b""
            if len(header) != _HEADER.size:
                raise ValueError("incomplete header")
            magic, size_bytes, checksum = _HEADER.unpack(header)
            # Checked before the rest is read: a damaged file may have any length.
            if magic != _MAGIC or status.st_size != _HEADER.size + size_bytes:
                raise ValueError("another format or length")
            index = file.read(size_bytes)
        if checksum != _checksum(name, index):
            raise ValueError("wrong CRC-32C")
        return index

    def _write(self, name: str, index: bytes, size_bytes: int) -> None:
        total_bytes = self._limits.total_bytes
        if self._bytes + size_bytes > total_bytes or self._files >= MAX_FILES:
            # A little more than needed, so that not every write has to scan the directory.
            spare_bytes = total_bytes // _SPARE_SHARE // BLOCK_BYTES * BLOCK_BYTES
            max_files = MAX_FILES - MAX_FILES // _SPARE_SHARE - 1
            self._trim(max(total_bytes - size_bytes - spare_bytes, 0), max_files)
            if self._bytes + size_bytes > total_bytes:
                return
        try:
            self._write_file(name, index)
        except OSError as e:
            if e.errno not in _NO_ROOM or self._bytes < size_bytes:
                raise
            # The disk is smaller than the limit: the least recently used files go.
            self._trim(self._bytes - size_bytes, MAX_FILES)
            self._write_file(name, index)
        failpoint("index_cache.file_renamed")
        self._count(self._files + 1, self._bytes + size_bytes)

    def _write_file(self, name: str, index: bytes) -> None:
        self._make_directory()
        path = self._limits.directory / name
        unfinished = path.with_name(f"{name}.{secrets.token_hex(4)}.tmp")
        try:
            with open(unfinished, "xb", buffering=0, opener=_open_privately) as file:
                failpoint("index_cache.file_created")
                left = memoryview(_HEADER.pack(_MAGIC, len(index), _checksum(name, index)) + index)
                while left:
                    left = left[file.write(left) :]
            failpoint("index_cache.index_written")
            os.replace(unfinished, path)
        except OSError:
            with suppress(OSError):
                os.unlink(unfinished)
            raise

    def _trim(self, max_bytes: int, max_files: int) -> None:
        """Remove files that were not used for the TTL, then the least recently used ones."""
        self._touch_used()
        by_use = sorted(self._scan())
        files, total_bytes = len(by_use), sum(size for _, _, size in by_use)
        oldest_s = 0.0 if self._limits.ttl_s is None else time.time() - self._limits.ttl_s
        failures = 0
        for used_s, name, size in by_use:
            is_too_much = total_bytes > max_bytes or files > max_files
            if failures == _MAX_REMOVAL_FAILURES or not (is_too_much or used_s <= oldest_s):
                break
            if self._unlink(name, "size" if is_too_much else "age"):
                files, total_bytes = files - 1, total_bytes - size
            else:
                failures += 1
        self._is_scanned = True
        self._count(files, total_bytes)

    def _touch_used(self) -> None:
        with self._used_lock:
            used, self._used = self._used, {}
        now_ns = time.time_ns()
        for order, name in enumerate(used):
            with suppress(OSError):
                os.utime(self._limits.directory / name, ns=(now_ns + order, now_ns + order))

    def _scan(self) -> Iterator[tuple[float, str, int]]:
        """Yield last use, name and charged bytes of each file; remove files of killed writers."""
        with os.scandir(self._limits.directory) as entries:
            for entry in entries:
                match = _NAME.fullmatch(entry.name)
                if match is None:
                    continue
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if match["unfinished"]:
                        if time.time() - status.st_mtime > _UNFINISHED_AFTER_S:
                            os.unlink(entry.path)
                    elif stat.S_ISREG(status.st_mode):
                        yield status.st_mtime, entry.name, _charged_bytes(status.st_size)

    def _count(self, files: int, total_bytes: int) -> None:
        self._files, self._bytes = files, total_bytes
        FILES.set(files)
        FILE_BYTES.set(total_bytes)


def _charged_bytes(size_bytes: int) -> int:
    return max(-(-size_bytes // BLOCK_BYTES), 1) * BLOCK_BYTES


def _checksum(name: str, index: bytes) -> int:
    checksum: int = crc32c(index, crc32c(name.encode()))
    return checksum


def _open_to_read(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _open_privately(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
