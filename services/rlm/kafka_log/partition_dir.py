"""List and read the files of one partition: segments, snapshots, leader epochs.

What reads in this folder raises LogFileError (UNREADABLE) if a file cannot be read, and
SegmentVanishedError if the broker deleted a segment meanwhile: list the directory again.
"""

import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from services.api.errors import InvalidRequestError
from services.api.lineage import Lineage, parse_checkpoint
from services.api.remote_log_manager import Problem, ProblemKind
from services.api.remote_log_metadata_manager import MAX_REPORTED_EPOCHS
from services.api.validation import INT64_MAX
from services.common.bounded_file import open_regular
from services.records.batches import BatchError, FileWindow, is_blank, walk_batches
from services.records.index_files import OFFSET_ENTRY, open_transactions

_GRANULARITY_NS = 100_000_000
_COARSE_GRANULARITY_NS = 2_000_000_000
_SECOND_NS = 1_000_000_000
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"

MAX_SIDE_FILE_BYTES = 256 * 1024 * 1024
"""Indexes and snapshots are read into memory; Kafka's own limit of an index is far below."""

MAX_TEXT_FILE_BYTES = 16 * 1024 * 1024
"""Checkpoints and properties take many times their size when parsed; this is 60,000 partitions."""

HEADERS_READ_AHEAD_BYTES = 64 * 1024
_BLOCK_BYTES = 512
T = TypeVar("T")
_LOG = ".log"
_INDEX = ".index"
_SNAPSHOT = ".snapshot"


class LogDirError(Exception):
    """The error of a log directory that is missing, empty, unreadable or not Kafka's."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class LogFileError(Exception):
    """The error of a partition's file that is missing, unreadable or invalid."""

    def __init__(
        self, kind: ProblemKind, path: Path, reason: str, offset: int | None = None
    ) -> None:
        super().__init__(f"{path}: {reason}")
        self.kind = kind
        self.path = path
        self.reason = reason
        self.offset = offset

    def problem(self, blocked_segments: int) -> Problem:
        return Problem(self.kind, str(self.path), self.reason, self.offset, blocked_segments)


class SegmentVanishedError(Exception):
    """The error if the broker deleted a segment during a read; list the directory again."""


def unreadable(path: Path, error: OSError) -> LogFileError:
    """Make an UNREADABLE error of `path`."""
    return LogFileError(ProblemKind.UNREADABLE, path, error.strerror or type(error).__name__)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The state of a file by which changes are detected without reading it.

    Attributes:
        ctime_ns: changes with contents, rights and owner; no process can set it back.
    """

    inode: int
    ctime_ns: int


def fingerprint_of(path: Path) -> Fingerprint | None:
    """Return a file's fingerprint, to be taken before the file is read.

    The result is None if the file cannot be examined, or changed too recently to detect another
    change.
    """
    try:
        status = os.stat(path)
    except OSError:
        return None
    if not is_settled(status.st_ctime_ns):
        return None
    return Fingerprint(status.st_ino, status.st_ctime_ns)


def is_settled(changed_ns: int) -> bool:
    """Return whether another change would get another time, by the clock's granularity.

    A whole second may be of a file system that keeps no fractions (ext4 with inodes of 128 bytes);
    FAT keeps every second one.
    """
    is_coarse = changed_ns % _SECOND_NS == 0
    granularity_ns = _COARSE_GRANULARITY_NS if is_coarse else _GRANULARITY_NS
    return time.time_ns() - changed_ns > granularity_ns


class CachedFile(Generic[T]):
    """Read a file again only if it has changed. Not thread-safe.

    Args:
        read: reads and parses the file; its errors are not cached.
    """

    def __init__(self, path: Path, read: Callable[[], T]) -> None:
        self._path = path
        self._read = read
        self._cached: tuple[Fingerprint, T] | None = None

    def value(self) -> T:
        """Return the parsed contents, with the errors of `read`."""
        fingerprint = fingerprint_of(self._path)
        if self._cached is not None and self._cached[0] == fingerprint:
            return self._cached[1]
        self._cached = None
        value = self._read()
        if fingerprint is not None:
            self._cached = fingerprint, value
        return value


@dataclass(frozen=True, slots=True)
class LocalSegment:
    """The files of one local segment.

    Attributes:
        size_bytes: of the log, up to the end of its last whole batch.
        next_base_offset: of the next segment; None if this one is active.
        unused_bytes: of the file after the log: the broker preallocates it (log.preallocate), or
            has written a part of a batch.
    """

    directory: Path
    base_offset: int
    size_bytes: int
    next_base_offset: int | None
    unused_bytes: int = 0

    @property
    def is_rolled(self) -> bool:
        return self.next_base_offset is not None

    @property
    def file_bytes(self) -> int:
        return self.size_bytes + self.unused_bytes

    def ending_at(self, size_bytes: int) -> "LocalSegment":
        """Return the segment with the log of `size_bytes` in its file."""
        unused = self.file_bytes - size_bytes
        return replace(self, size_bytes=size_bytes, unused_bytes=unused)

    @property
    def end_offset(self) -> int:
        """Return the last offset of a rolled segment, inclusive."""
        assert self.next_base_offset is not None
        return self.next_base_offset - 1

    @property
    def log_path(self) -> Path:
        return self.file(_LOG)

    @property
    def producer_snapshot_path(self) -> Path:
        """Return the path of the producer snapshot at the end of this rolled segment."""
        return snapshot_path(self.directory, self.end_offset + 1)

    def file(self, suffix: str) -> Path:
        return self.directory / f"{self.base_offset:020}{suffix}"


def snapshot_path(directory: Path, offset: int) -> Path:
    return directory / f"{offset:020}{_SNAPSHOT}"


def list_segments(directory: Path) -> tuple[LocalSegment, ...]:
    """List the segments by base offset, the last one active, whose log counts as its whole file.

    Files that vanish meanwhile are left out; so are `.deleted`, `.cleaned` and `.swap`, which are
    not part of the log.
    """
    files = dict(_files(directory, _LOG))
    bases: list[int] = sorted(files)
    nexts: list[int | None] = [*bases[1:], None]
    return tuple(
        _listed(directory, base, files[base], following)
        for base, following in zip(bases, nexts, strict=False)
    )


def _listed(
    directory: Path, base_offset: int, status: os.stat_result, next_base_offset: int | None
) -> LocalSegment:
    size = status.st_size
    segment = LocalSegment(directory, base_offset, size, next_base_offset)
    # A rolled one is named when it is read.
    if not segment.is_rolled and not stat.S_ISREG(status.st_mode):
        raise LogFileError(ProblemKind.UNREADABLE, segment.log_path, "is not a regular file")
    # A preallocated file is sparse; the others need not be opened.
    if segment.is_rolled and status.st_blocks * _BLOCK_BYTES < size:
        with suppress(FileNotFoundError, LogFileError), reading(segment.log_path):
            return segment.ending_at(rolled_log_bytes(segment))
    return segment


def rolled_log_bytes(segment: LocalSegment) -> int:
    """Find the end of a rolled segment's log: the end of its last whole batch.

    It is the end of the file, unless the broker was killed while the file was preallocated: then
    zeros follow the last batch. A log whose last records are missing is not cut at its zeros: they
    may be what a crash has left of the records.
    """
    with FileWindow(segment.log_path, HEADERS_READ_AHEAD_BYTES) as window:
        size = window.size_bytes
        if any(window.read(max(size - 1, 0), 1)):
            return size
        for start in (_last_indexed_position(segment), 0):
            end, next_offset = start, segment.base_offset
            with suppress(BatchError):
                for batch in walk_batches(window, start, size, next_offset, verify=False):
                    end, next_offset = batch.next_position, batch.last_offset + 1
            if next_offset == segment.next_base_offset and is_blank(window, end):
                return end
    return size


def _last_indexed_position(segment: LocalSegment) -> int:
    index = read_side_file(segment.file(".index")) or b""
    entries = OFFSET_ENTRY.iter_unpack(index[: len(index) - len(index) % OFFSET_ENTRY.size])
    positions: list[int] = [position for _, position in entries]
    return max([0, *positions])


def list_snapshots(directory: Path) -> list[int]:
    """List the offsets of the producer snapshots, ascending."""
    return sorted(offset for offset, _ in _files(directory, _SNAPSHOT))


def list_indexes(directory: Path) -> list[int]:
    """List the base offsets of the offset indexes, ascending."""
    return sorted(offset for offset, _ in _files(directory, _INDEX))


def read_side_file(path: Path, max_bytes: int = MAX_SIDE_FILE_BYTES) -> bytes | None:
    """Read an index, a snapshot or a checkpoint; None if it does not exist.

    Raises:
        LogFileError: UNREADABLE; LIMIT_EXCEEDED if it is larger than `max_bytes`: it is not read.
    """
    with reading(path):
        try:
            with open(open_regular(path), "rb") as file:
                # The file may grow after it is measured.
                is_too_large = os.fstat(file.fileno()).st_size > max_bytes
                data = b"" if is_too_large else file.read(max_bytes + 1)
        except FileNotFoundError:
            return None
    if is_too_large or len(data) > max_bytes:
        raise LogFileError(
            ProblemKind.LIMIT_EXCEEDED,
            path,
            f"larger than {max_bytes} bytes, the limit of RLM for such a file; if the broker does "
            "not need as much, restore the file from a replica",
        )
    return data


def read_producer_snapshot(path: Path) -> tuple[bytes, dict[int, int]]:
    """Read a producer snapshot: its bytes, and its open transactions.

    Raises:
        LogFileError: PRODUCER_SNAPSHOT_MISSING if it does not exist or is damaged; UNREADABLE.
    """
    data = read_side_file(path)
    try:
        if data is None:
            raise ValueError("missing")
        return data, open_transactions(data)
    except ValueError as e:
        reason = f"producer snapshot: {e}"
        raise LogFileError(ProblemKind.PRODUCER_SNAPSHOT_MISSING, path, reason) from e


def read_lineage(directory: Path) -> Lineage:
    """Read the partition's leader epochs; there are none before its first record.

    Raises:
        LogFileError: LEADER_EPOCHS_MISSING if the file does not exist or is damaged;
            LIMIT_EXCEEDED if it has more than MAX_REPORTED_EPOCHS; UNREADABLE.
    """
    path = directory / LEADER_EPOCH_CHECKPOINT
    data = read_side_file(path, MAX_TEXT_FILE_BYTES)
    if data is None:
        raise LogFileError(ProblemKind.LEADER_EPOCHS_MISSING, path, "missing")
    if not data:
        return Lineage()
    if (count := data.count(b"\n") - 2) > MAX_REPORTED_EPOCHS:
        reason = (
            f"{count} leader epochs, over the limit of {MAX_REPORTED_EPOCHS} of one partition "
            "(MAX_REPORTED_EPOCHS); the partition is copied again when the broker has removed the "
            "epochs of records that it deleted"
        )
        raise LogFileError(ProblemKind.LIMIT_EXCEEDED, path, reason)
    try:
        return parse_checkpoint(data.decode("ascii"))
    except (ValueError, InvalidRequestError) as e:
        raise LogFileError(ProblemKind.LEADER_EPOCHS_MISSING, path, str(e)) from e


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert an OSError into UNREADABLE of `path`, except for a missing file."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as e:
        raise unreadable(path, e) from e


@contextmanager
def reading_segment(path: Path) -> Iterator[None]:
    """Convert errors as `reading` does, and a missing segment into SegmentVanishedError."""
    try:
        with reading(path):
            yield
    except FileNotFoundError as e:
        raise SegmentVanishedError(f"{path}: deleted during a read") from e


def _files(directory: Path, suffix: str) -> Sequence[tuple[int, os.stat_result]]:
    """List offset and status of the files named by a 20-digit offset and `suffix`."""
    found = []
    with reading(directory), os.scandir(directory) as entries:
        for entry in entries:
            stem = entry.name.removesuffix(suffix)
            if stem == entry.name or not _is_offset(stem):
                continue
            try:
                found.append((int(stem), entry.stat()))
            except FileNotFoundError:
                continue
    return found


def _is_offset(stem: str) -> bool:
    return len(stem) == 20 and stem.isascii() and stem.isdecimal() and int(stem) <= INT64_MAX
