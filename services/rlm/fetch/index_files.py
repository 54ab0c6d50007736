"""Keep cached indexes in files: bounded by bytes, least recently used out first."""

import errno
import fcntl
import logging
import os
import re
import secrets
import stat
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from uuid import UUID

from crc32c import crc32c

from services.api.remote_storage_manager import IndexType
from services.common.failpoints import failpoint
from services.rlm.metrics import DAMAGED, EVICTIONS, FAILURES, FILE_BYTES, FILES

_MAGIC = b"SDIX"

_VERSION = 1
"""Also to be raised when checks.py refuses what it accepted: files are not checked anew."""

_DESCRIPTION = Struct(">4sIQ")
_CHECKSUM = Struct(">I")
HEADER_BYTES = _DESCRIPTION.size + _CHECKSUM.size
_SUFFIXES = "|".join(kind.value.lower() for kind in IndexType)
_NAME = re.compile(rf"[0-9a-f]{{32}}\.(?:{_SUFFIXES})")
_UNFINISHED = re.compile(rf"{_NAME.pattern}\.(?P<run>[0-9a-f]{{8}})\.tmp")


class DamagedFileError(Exception):
    """The file is not one that this version of the cache wrote, whole, under this name."""


def name_of(segment_id: UUID, kind: IndexType) -> str:
    return f"{segment_id.hex}.{kind.value.lower()}"


def is_name(name: str) -> bool:
    """Whether a file of this name is the cache's."""
    return _NAME.fullmatch(name) is not None


def unfinished_name(name: str, run: str) -> str:
    """While it is written; `run` names who writes."""
    return f"{name}.{run}.tmp"


def run_of_unfinished(name: str) -> str | None:
    """Who wrote the unfinished file of this name; None: it is none."""
    match = _UNFINISHED.fullmatch(name)
    return None if match is None else match["run"]


def header_of(name: str, index: bytes) -> bytes:
    """What stands in the file before the index."""
    described = _DESCRIPTION.pack(_MAGIC, _VERSION, len(index))
    return described + _CHECKSUM.pack(_checksum(name, described, index))


def index_bytes(header: bytes) -> int:
    """How long the index is that stands behind this header.

    Raises:
        DamagedFileError: it is no header.
    """
    if len(header) != HEADER_BYTES:
        raise DamagedFileError(f"{len(header)} bytes are no header")
    magic, version, size_bytes = _DESCRIPTION.unpack_from(header)
    if magic != _MAGIC or version != _VERSION:
        raise DamagedFileError("another format")
    return int(size_bytes)


def check_index_file(name: str, header: bytes, index: bytes) -> None:
    """
    Raises:
        DamagedFileError: says what is wrong.
    """
    size_bytes = index_bytes(header)
    if len(index) != size_bytes:
        raise DamagedFileError(f"{len(index)} bytes where {size_bytes} were written")
    described, checksum = header[: _DESCRIPTION.size], header[_DESCRIPTION.size :]
    if checksum != _CHECKSUM.pack(_checksum(name, described, index)):
        raise DamagedFileError("wrong CRC-32C")


def _checksum(name: str, described: bytes, index: bytes) -> int:
    checksum: int = crc32c(index, crc32c(name.encode() + described))
    return checksum


BLOCK_BYTES = 4096

MAX_FILES = 65_536
"""Of each, some 300 bytes of memory are needed."""

LOT_FILES = 64


def charged_bytes(size_bytes: int) -> int:
    """What a file counts: whole blocks, at least one."""
    return max(-(-size_bytes // BLOCK_BYTES), 1) * BLOCK_BYTES


@dataclass(slots=True)
class HeldFile:
    """
    Attributes:
        charged_bytes: its size, as it is charged.
        used_s: its last use.
    """

    name: str
    charged_bytes: int
    used_s: float


class HeldFiles:
    """
    Attributes:
        total_bytes: as charged.
    """

    def __init__(self) -> None:
        # The least recently used is the first.
        self._files: OrderedDict[str, HeldFile] = OrderedDict()
        self.total_bytes = 0

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def __len__(self) -> int:
        return len(self._files)

    def add(self, name: str, size_bytes: int, used_s: float) -> None:
        """A file that is used later than those that are here."""
        self.take(name)
        self._add(HeldFile(name, charged_bytes(size_bytes), used_s))

    def add_found(self, found: Iterable[tuple[str, int, float]]) -> None:
        """What an earlier process left: name, size and last use of each file. What was used since
        is here already, and stays as it is."""
        for name, size_bytes, used_s in sorted(found, key=lambda file: file[2], reverse=True):
            if name not in self._files:
                self._add(HeldFile(name, charged_bytes(size_bytes), used_s))
                self._files.move_to_end(name, last=False)

    def use(self, name: str, now_s: float) -> bool:
        """It is used now; False: it is not here."""
        file = self._files.get(name)
        if file is None:
            return False
        self._files.move_to_end(name)
        file.used_s = now_s
        return True

    def used_since(self, since_s: float) -> list[tuple[str, float]]:
        """Name and last use of those that were used since then."""
        used = []
        for file in reversed(self._files.values()):
            if file.used_s < since_s:
                break
            used.append((file.name, file.used_s))
        return used

    def take(self, name: str) -> HeldFile | None:
        """Out of the books."""
        file = self._files.pop(name, None)
        if file is not None:
            self.total_bytes -= file.charged_bytes
        return file

    def take_oldest(self, goes: Callable[[HeldFile], bool]) -> list[HeldFile]:
        """Out of the books: the least recently used, as long as `goes` says so of the next one; no
        more than a lot."""
        lot: list[HeldFile] = []
        while self._files and len(lot) < LOT_FILES:
            file = next(iter(self._files.values()))
            if not goes(file):
                break
            self.take(file.name)
            lot.append(file)
        return lot

    def put_back(self, file: HeldFile, now_s: float) -> None:
        """It still lies there: its turn to go comes behind that of all others."""
        if file.name not in self._files:
            file.used_s = now_s
            self._add(file)

    def clear(self) -> None:
        self._files.clear()
        self.total_bytes = 0

    def _add(self, file: HeldFile) -> None:
        self._files[file.name] = file
        self.total_bytes += file.charged_bytes


RETRY_AFTER_S = 10.0
"""How long the disk is not asked for what it refused."""

_log = logging.getLogger(__name__)


class DiskRefusals:
    """Count and log failures, damaged files and recoveries. Thread-safe.

    Args:
        directory: as lines name it.
        clock: seconds that only grow.
    """

    def __init__(self, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._clock = clock
        self._lock = threading.Lock()
        self._refused_at_s: dict[str, float] = {}

    def failed(self, operation: str, error: OSError) -> None:
        """Count and tell it, and let `operation` rest."""
        self.tell_failed(operation, error)
        self.rest(operation)

    def tell_failed(self, operation: str, error: OSError) -> None:
        """Count and tell it; `operation` may be tried again at once."""
        FAILURES.labels(operation).inc()
        _log.warning(
            "index cache %s: %s failed: %s; reads continue without it",
            self._directory,
            operation,
            error,
        )

    def damaged(self, name: str, error: Exception) -> None:
        DAMAGED.inc()
        text = "index cache %s: %s is damaged and is fetched again: %s"
        _log.warning(text, self._directory, name, error)

    def rest(self, operation: str) -> None:
        with self._lock:
            self._refused_at_s[operation] = self._clock()

    def is_resting(self, operation: str) -> bool:
        with self._lock:
            refused_at_s = self._refused_at_s.get(operation)
        return refused_at_s is not None and self._clock() - refused_at_s < RETRY_AFTER_S

    def worked(self, operation: str) -> None:
        with self._lock:
            refused_at_s = self._refused_at_s.pop(operation, None)
        if refused_at_s is not None:
            _log.info("index cache %s: %s works again", self._directory, operation)

    def opened(self) -> None:
        """The directory: perhaps it is another one, of which nothing was refused yet."""
        self.worked("open")
        with self._lock:
            self._refused_at_s.clear()


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


_MAX_REFUSED = 8
"""How many files that cannot be removed are passed over at once."""


class Eviction:
    """A file leaves the books before it leaves the disk: if it is written anew in between, the
    books have one that is not there, which the next read of it puts right.

    Args:
        lock: guards the books; it is never held while the disk works.
    """

    def __init__(
        self,
        held: HeldFiles,
        lock: threading.Lock,
        refusals: DiskRefusals,
        clock: Callable[[], float],
    ) -> None:
        self._held = held
        self._lock = lock
        self._refusals = refusals
        self._clock = clock

    def evict(
        self, directory: CacheDirectory, goes: Callable[[HeldFile], bool], reason: str
    ) -> bool:
        """Remove the least recently used as long as `goes`, which is asked with the lock held, says
        so of the next one; False: the disk refuses too many."""
        refused = 0
        while refused < _MAX_REFUSED:
            with self._lock:
                lot = self._held.take_oldest(goes)
            if not lot:
                return True
            refused += self.remove(directory, lot, reason)
        return False

    def remove(self, directory: CacheDirectory, files: Iterable[HeldFile], reason: str) -> int:
        """Those were taken out of the books. How many cannot be removed: they go on to count."""
        refused = 0
        for file in files:
            try:
                directory.remove(file.name)
                EVICTIONS.labels(reason).inc()
            except OSError as e:
                refused += 1
                self._refusals.failed("remove", e)
                with self._lock:
                    self._held.put_back(file, self._clock())
        return refused


_NOTE_USES_AFTER_S = 60.0
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class IndexFileLimits:
    """
    Attributes:
        directory: of this process alone, on a disk of this machine.
        total_bytes: of all files, each counted in whole blocks of 4 KiB.
        ttl_s: how long a file stays that nobody uses; None: for ever.
    """

    directory: Path
    total_bytes: int = 1024 * 1024 * 1024
    ttl_s: float | None = 900.0


class IndexFiles:
    """Thread-safe. Nothing is here until `maintain` has opened the directory.

    The lock, which every read takes, guards the books and is never held while the disk works.

    Args:
        clock: seconds that only grow.
        unix_time: seconds, as files bear them.
    """

    def __init__(
        self,
        limits: IndexFileLimits,
        clock: Callable[[], float] = time.monotonic,
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._unix_time = unix_time
        self._refusals = DiskRefusals(limits.directory, clock)
        self._upkeep = threading.Lock()
        self._uses_noted_s = clock()
        self._lock = threading.Lock()
        self._held = HeldFiles()
        self._eviction = Eviction(self._held, self._lock, self._refusals, clock)
        self._being_written: dict[str, int] = {}
        self._directory: CacheDirectory | None = None
        self._is_scanned = False
        self._is_closed = False

    def read(self, name: str) -> bytes | None:
        """None: it is not here."""
        with self._lock:
            directory = self._directory
            if directory is None or (self._is_scanned and name not in self._held):
                return None
        if self._refusals.is_resting("read"):
            return None
        try:
            index = directory.read(name)
        except FileNotFoundError:
            pass
        except DamagedFileError as e:
            self._refusals.damaged(name, e)
        except OSError as e:
            self._refusals.failed("read", e)
        else:
            self._refusals.worked("read")
            self._was_read(directory, name, index)
            return index
        self._drop(directory, name)
        return None

    def use(self, name: str) -> None:
        """It was used, from wherever."""
        with self._lock:
            self._held.use(name, self._clock())

    def write(self, name: str, index: bytes) -> None:
        """Keep it if there is room, and if the disk takes it; not before it is known what is there:
        that counts, too."""
        size_bytes = charged_bytes(HEADER_BYTES + len(index))
        if self._refusals.is_resting("write"):
            return
        with self._lock:
            directory = self._directory if self._is_scanned else None
            being_written_bytes = sum(self._being_written.values())
            has_room = being_written_bytes + size_bytes <= self._limits.total_bytes
            if directory is None or name in self._being_written or not has_room:
                return
            self._being_written[name] = size_bytes
        try:
            self._write(directory, name, index)
        finally:
            with self._lock:
                del self._being_written[name]
                self._show()

    def remove(self, names: Iterable[str]) -> None:
        """Those that are here; their segments are deleted."""
        with self._lock:
            directory = self._directory
            taken = [file for name in names if (file := self._held.take(name)) is not None]
        if directory is not None:
            self._eviction.remove(directory, taken, "deleted")
        with self._lock:
            self._show()

    def maintain(self) -> None:
        """Once in a while: open the directory, look what lies there, drop what nobody used, note
        what was used."""
        with self._upkeep:
            directory = self._in_place() or self._open()
            if directory is None:
                return
            if not self._is_scanned:
                self._scan(directory)
            if self._limits.ttl_s is not None:
                oldest_s = self._clock() - self._limits.ttl_s
                self._eviction.evict(directory, lambda file: file.used_s <= oldest_s, "age")
            self._eviction.evict(directory, self._is_beyond_limits, "size")
            with self._lock:
                self._show()
            self._note_uses(directory)

    def close(self) -> None:
        """Leave the directory to others; from here on nothing is here."""
        with self._lock:
            self._is_closed = True
        self._take_directory(None)

    def _take_directory(self, directory: CacheDirectory | None) -> None:
        with self._lock:
            self._directory = None if self._is_closed else directory
            self._is_scanned = False
            self._held.clear()
            self._show()

    def _in_place(self) -> CacheDirectory | None:
        directory = self._directory
        if directory is not None and not directory.is_in_place():
            error = FileNotFoundError(f"{directory.path}: it was removed")
            self._refusals.tell_failed("open", error)
            self._take_directory(None)
            return None
        return directory

    def _open(self) -> CacheDirectory | None:
        if self._is_closed or self._refusals.is_resting("open"):
            return None
        try:
            directory = CacheDirectory(self._limits.directory)
        except OSError as e:
            self._refusals.failed("open", e)
            return None
        self._refusals.opened()
        self._take_directory(directory)
        return directory

    def _scan(self, directory: CacheDirectory) -> None:
        try:
            found = list(directory.found())
        except OSError as e:
            self._refusals.failed("scan", e)
            return
        now_s, unix_s = self._clock(), self._unix_time()
        aged = [(name, size, now_s - max(unix_s - at_s, 0.0)) for name, size, at_s in found]
        with self._lock:
            if directory is self._directory:
                self._held.add_found(aged)
                self._is_scanned = True

    def _note_uses(self, directory: CacheDirectory) -> None:
        ttl_s = self._limits.ttl_s
        after_s = _NOTE_USES_AFTER_S if ttl_s is None else min(_NOTE_USES_AFTER_S, ttl_s / 2)
        now_s, unix_s = self._clock(), self._unix_time()
        if now_s - self._uses_noted_s < after_s:
            return
        with self._lock:
            used = self._held.used_since(self._uses_noted_s)
        self._uses_noted_s = now_s
        for name, used_s in used:
            directory.note_use(name, unix_s - (now_s - used_s))

    def _was_read(self, directory: CacheDirectory, name: str, index: bytes) -> None:
        with self._lock:
            is_held = self._held.use(name, self._clock())
            if not is_held and not self._is_scanned and directory is self._directory:
                self._held.add(name, HEADER_BYTES + len(index), self._clock())

    def _write(self, directory: CacheDirectory, name: str, index: bytes) -> None:
        if not self._eviction.evict(directory, self._is_beyond_limits, "size"):
            self._refusals.rest("write")
            return
        try:
            self._write_to(directory, name, index)
        except OSError as e:
            self._refusals.failed("write", e)
            return
        self._refusals.worked("write")
        with self._lock:
            if directory is self._directory:
                self._held.add(name, HEADER_BYTES + len(index), self._clock())

    def _write_to(self, directory: CacheDirectory, name: str, index: bytes) -> None:
        """A disk smaller than the setting holds what fits on it."""
        try:
            directory.write(name, index)
        except OSError as e:
            needed_bytes = charged_bytes(HEADER_BYTES + len(index))
            if e.errno not in _NO_ROOM or not self._give_up(directory, needed_bytes):
                raise
            directory.write(name, index)

    def _give_up(self, directory: CacheDirectory, size_bytes: int) -> bool:
        """Remove the least recently used, as much as that; False: there is not as much."""
        with self._lock:
            left_bytes = self._held.total_bytes - size_bytes
        if left_bytes < 0:
            return False
        return self._eviction.evict(
            directory, lambda _: self._held.total_bytes > left_bytes, "size"
        )

    def _is_beyond_limits(self, _: HeldFile) -> bool:
        bytes_then = self._held.total_bytes + sum(self._being_written.values())
        return bytes_then > self._limits.total_bytes or len(self._held) >= MAX_FILES

    def _drop(self, directory: CacheDirectory, name: str) -> None:
        """It is no use, and may not be there."""
        with self._lock:
            self._held.take(name)
            self._show()
        try:
            directory.remove(name)
        except OSError as e:
            self._refusals.failed("remove", e)

    def _show(self) -> None:
        FILES.set(len(self._held))
        FILE_BYTES.set(self._held.total_bytes)
