"""Keep parts of remote segments in files, beyond what memory holds, until the process ends."""

import errno
import fcntl
import logging
import os
import secrets
import shutil
import threading
import time
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from crc32c import crc32c

from services.api.ids import RemoteLogSegmentId
from services.rlm.metrics import CHUNK_FILE_BYTES, CHUNK_FILE_FAILURES, CHUNK_FILE_READ_BYTES

_log = logging.getLogger(__name__)

MAX_FILES = 65_536
RETRY_AFTER_S = 10.0
"""The pause of writes after a failure, seconds."""

WRITERS = 2
"""The most chunks that wait for the disk in memory; others are not kept in files."""

_HEADER = Struct(">4sI")
_MAGIC = b"SDC1"
_BLOCK_BYTES = 4096
_FOLDER = "chunks-"
_LOCK = "lock"
_RE_READ_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class ChunkFileLimits:
    """The limits of the files.

    Attributes:
        directory: each process has a folder in it.
        total_bytes: of all files of this process, each counted in whole blocks of 4 KiB.
    """

    directory: Path
    total_bytes: int


@dataclass(frozen=True, slots=True, order=True)
class _Range:
    """The positions of a file's bytes in its segment; `end` is exclusive."""

    start: int
    end: int


Piece = bytes | memoryview
_Key = tuple[RemoteLogSegmentId, _Range]


class ChunkFiles:
    """Keep chunks as files of one folder. Thread-safe; disk failures raise no error.

    Files that were read again after they were written have up to 80 % of the room; the rest is for
    those that were not, so that a scan evicts only these. Each has a checksum over its name and
    content.
    """

    def __init__(
        self, limits: ChunkFileLimits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()
        self._writers = threading.BoundedSemaphore(WRITERS)
        self._of_segment: dict[RemoteLogSegmentId, list[_Range]] = {}
        # The least recently used first.
        self._once: OrderedDict[_Key, int] = OrderedDict()
        self._again: OrderedDict[_Key, int] = OrderedDict()
        self._bytes = self._again_bytes = 0
        self._failed_s: float | None = None
        self._is_closed = False
        self._folder = limits.directory / f"{_FOLDER}{secrets.token_hex(8)}"
        self._folder_lock: int | None = None
        try:
            _remove_abandoned(limits.directory)
            self._make_folder()
        except OSError as e:
            self._failed("write", e)

    def read(self, segment: RemoteLogSegmentId, position: int, end: int) -> Iterator[memoryview]:
        """Yield the bytes from `position` on, up to `end` or the first that no file has."""
        while position < end:
            key = self._find(segment, position)
            data = None if key is None else self._read(key)
            if key is None or data is None:
                return
            piece = data[position - key[1].start : end - key[1].start]
            if len(piece) < len(data):
                piece = memoryview(bytes(piece))  # It does not keep the whole file in memory.
            CHUNK_FILE_READ_BYTES.inc(len(piece))
            yield piece
            position += len(piece)

    def keep(self, segment: RemoteLogSegmentId, start: int, pieces: Sequence[Piece]) -> None:
        """Write bytes of a segment, if the disk works and is not busy."""
        size = sum(map(len, pieces))
        key = segment, _Range(start, start + size)
        charged = -(-(_HEADER.size + size) // _BLOCK_BYTES) * _BLOCK_BYTES
        is_pausing = self._failed_s is not None and self._clock() < self._failed_s + RETRY_AFTER_S
        if not size or charged > self._limits.total_bytes or is_pausing or self._is_closed:
            return
        if self._find(segment, start) is not None or not self._writers.acquire(blocking=False):
            return
        try:
            self._make_room(charged)
            self._write(key, pieces)
            self._add(key, charged)
        except OSError as e:
            self._failed("write", e)
            if e.errno in (errno.ENOSPC, errno.EDQUOT):
                self._make_room(self._limits.total_bytes)  # Others need the disk more.
        finally:
            self._writers.release()
            if self._is_closed:  # During the write, which has made the folder again.
                self._remove_folder()

    def remove(self, segments: Iterable[RemoteLogSegmentId]) -> None:
        """Remove the files of deleted or damaged segments."""
        for segment in segments:
            with self._lock:
                keys = [(segment, each) for each in self._of_segment.get(segment, ())]
            for key in keys:
                self._remove(key)

    def close(self) -> None:
        """Remove everything. Idempotent."""
        self._is_closed = True
        self._remove_folder()

    def _remove_folder(self) -> None:
        with self._lock:
            lock, self._folder_lock = self._folder_lock, None
        shutil.rmtree(self._folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)

    def _find(self, segment: RemoteLogSegmentId, position: int) -> _Key | None:
        with self._lock:
            ranges = self._of_segment.get(segment, [])
            at = bisect_right(ranges, position, key=lambda each: each.start) - 1
            found = ranges[at] if at >= 0 and position < ranges[at].end else None
            return None if found is None else (segment, found)

    def _read(self, key: _Key) -> memoryview | None:
        path, size = self._path(key), key[1].end - key[1].start
        try:
            data = path.read_bytes()
        except OSError as e:
            self._remove(key)
            if not isinstance(e, FileNotFoundError):
                self._failed("read", e)
            return None
        content = memoryview(data)[_HEADER.size :]
        if len(content) != size or data[: _HEADER.size] != _header(path.name, [content]):
            _log.warning("chunk file %s is damaged; its bytes are fetched again", path)
            CHUNK_FILE_FAILURES.labels("check").inc()
            self._remove(key)
            return None
        with self._lock:
            self._used(key)
        return content

    def _used(self, key: _Key) -> None:
        if key in self._again:
            self._again.move_to_end(key)
        elif key in self._once:
            self._again[key] = charged = self._once.pop(key)
            self._again_bytes += charged
            while self._again_bytes > _RE_READ_SHARE * self._limits.total_bytes:
                last, charged = self._again.popitem(last=False)
                self._once[last] = charged
                self._again_bytes -= charged

    def _write(self, key: _Key, pieces: Sequence[Piece]) -> None:
        path = self._path(key)
        # A range may be written twice at once.
        unfinished = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
        if not self._folder.exists():
            self._make_folder()
        try:
            with open(unfinished, "xb", buffering=0, opener=_private) as file:
                for piece in (_header(path.name, pieces), *pieces):
                    if file.write(piece) != len(piece):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            unfinished.rename(path)
        except OSError:
            with suppress(OSError):
                unfinished.unlink()
            raise
        if self._failed_s is not None:
            _log.info("chunk files in %s: the disk works again", self._folder)
            self._failed_s = None

    def _add(self, key: _Key, charged: int) -> None:
        with self._lock:
            ranges = self._of_segment.setdefault(key[0], [])
            if key[1] not in ranges:
                insort(ranges, key[1])
                self._once[key] = charged
                self._count(charged)

    def _make_room(self, wanted: int) -> None:
        while True:
            with self._lock:
                has_room = self._bytes + wanted <= self._limits.total_bytes
                files = len(self._once) + len(self._again)
                if (has_room and files < MAX_FILES) or files == 0:
                    return
                oldest = next(iter(self._once or self._again))
            self._remove(oldest)

    def _remove(self, key: _Key) -> None:
        with self._lock:
            charged = self._once.pop(key, None)
            if charged is None:
                charged = self._again.pop(key, None)
                self._again_bytes -= charged or 0
            if charged is None:
                return
            ranges = self._of_segment[key[0]]
            ranges.remove(key[1])
            if not ranges:
                del self._of_segment[key[0]]
            self._count(-charged)
        with suppress(OSError):
            self._path(key).unlink()

    def _count(self, size_bytes: int) -> None:
        self._bytes += size_bytes
        CHUNK_FILE_BYTES.set(self._bytes)

    def _path(self, key: _Key) -> Path:
        segment, positions = key
        return self._folder / f"{segment.id.hex}-{positions.start}-{positions.end}"

    def _make_folder(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self._folder / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            # Without the lock another process may remove the folder: nothing is written to it.
            os.close(lock)
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        with self._lock:
            before, self._folder_lock = self._folder_lock, lock
        if before is not None:
            os.close(before)

    def _failed(self, operation: str, error: OSError) -> None:
        CHUNK_FILE_FAILURES.labels(operation).inc()
        if self._failed_s is None:
            _log.warning(
                "chunk files in %s: %s failed: %s; reads continue without, retrying every %d s",
                self._folder,
                operation,
                error,
                RETRY_AFTER_S,
            )
        self._failed_s = self._clock()


def _header(name: str, pieces: Iterable[Piece]) -> bytes:
    checksum = crc32c(name.encode())
    for piece in pieces:
        checksum = crc32c(piece, checksum)
    return _HEADER.pack(_MAGIC, checksum)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _remove_abandoned(directory: Path) -> None:
    """Remove the folders of processes that ended."""
    for folder in directory.glob(f"{_FOLDER}*"):
        with suppress(OSError):
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
        with suppress(OSError):
            folder.rmdir()  # Its process was killed before it had a lock.
