"""The files of the cache: bounded by bytes, the least recently used goes first, and whatever the
disk does, a reader is told no worse than that the index is not here.
"""

import errno
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from services.rlm.reading.index_cache.directory import CacheDirectory
from services.rlm.reading.index_cache.disk_refusals import DiskRefusals
from services.rlm.reading.index_cache.eviction import Eviction
from services.rlm.reading.index_cache.held_files import (
    MAX_FILES,
    HeldFile,
    HeldFiles,
    charged_bytes,
)
from services.rlm.reading.index_cache.index_file import HEADER_BYTES, DamagedFileError
from services.rlm.reading.index_cache.metrics import FILE_BYTES, FILES

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
