"""Delete a segment's files from a partition's folder, under Kafka's lock of the log directory."""

import fcntl
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import ProblemKind
from services.common.failpoints import failpoint
from services.rlm.kafka_log.checkpoints import META_PROPERTIES, read_partition_metadata
from services.rlm.kafka_log.log_dir import LOCK_FILE, PartitionDir
from services.rlm.kafka_log.partition_dir import (
    LocalSegment,
    LogDirError,
    LogFileError,
    reading,
    snapshot_path,
)

_REMEDY = (
    "stop the broker or the other RLM that runs on the directory, or turn "
    "RLM_LOCAL_RETENTION_ENFORCE off: the broker applies its own retention"
)


class LogDirLocks:
    """Hold the locks of all log directories until `close` or the end of the process.

    While they are held, no broker starts on the directories. Java's FileChannel.tryLock uses fcntl,
    too, so the broker respects the lock. Such a lock belongs to the process: it excludes other
    processes only, and is lost when any code of this process opens and closes the same file.

    Source: LogManager.lockLogDirs.

    Raises:
        LogDirError: if another process holds one, or a directory is not writable; then none is
            held.
    """

    def __init__(self, log_dirs: Sequence[Path]) -> None:
        self._fds: dict[Path, int] = {}
        try:
            for log_dir in log_dirs:
                self._fds[log_dir] = _lock(log_dir)
        except LogDirError:
            self.close()
            raise

    def require_held(self, log_dir: Path) -> None:
        """Raise if the directory at this path is not the one that was locked.

        Raises:
            LogDirError: if it was not given at the start, or its file system or lock file was
                replaced.
        """
        fd = self._fds.get(log_dir)
        try:
            if fd is not None and os.path.samestat(os.fstat(fd), os.stat(log_dir / LOCK_FILE)):
                return
        except OSError as e:
            raise LogDirError(log_dir, f"{LOCK_FILE}: {e.strerror or type(e).__name__}") from e
        reason = f"its {LOCK_FILE} was replaced, so nothing is deleted there; restart RLM"
        raise LogDirError(log_dir, reason)

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()


def _lock(log_dir: Path) -> int:
    path = log_dir / LOCK_FILE
    if not (log_dir / META_PROPERTIES).is_file():
        reason = f"it has no {META_PROPERTIES}, so it is no broker's; remove it from RLM_LOG_DIRS"
        raise LogDirError(log_dir, reason)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as e:
        why = e.strerror or type(e).__name__
        reason = f"cannot open {LOCK_FILE} for writing ({why}); give RLM's user write access"
        raise LogDirError(log_dir, reason) from e
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as e:
        os.close(fd)
        raise LogDirError(log_dir, f"another process holds its {LOCK_FILE}: {_REMEDY}") from e
    except OSError as e:
        os.close(fd)
        reason = f"cannot lock {LOCK_FILE} ({e.strerror or type(e).__name__})"
        raise LogDirError(log_dir, reason) from e
    return fd


class FolderChangedError(Exception):
    """The error if a folder or file is not the one that was checked."""


class OwnedFolder:
    """The open folder of a partition, even if another folder is now at its path.

    Attributes:
        fd: renames and removals through it happen in this folder only.
    """

    def __init__(self, name: TopicIdPartition, found: PartitionDir, locks: LogDirLocks, fd: int):
        self.fd = fd
        self._name = name
        self._path = found.path
        self._locks = locks

    def require_owned(self) -> None:
        """Raise unless the folder is the partition's and this process owns its directory.

        Raises:
            LogDirError, LogFileError, FolderChangedError: if it is not, or cannot be read.
            FileNotFoundError: if nothing is at its path.
        """
        self._locks.require_held(self._path.parent)
        lies_here = read_partition_metadata(self._path, self._name.topic, self._name.partition)
        if lies_here != self._name:
            raise FolderChangedError(
                f"{self._path}: now has the log of topic id {lies_here.topic_id}; retrying"
            )
        with reading(self._path):
            if not os.path.samestat(os.fstat(self.fd), os.stat(self._path)):
                raise FolderChangedError(f"{self._path}: was replaced by another folder; retrying")

    def require_rolled(self, segment: LocalSegment) -> None:
        """Raise unless the segment has the size it was listed with and is not the last one.

        Raises:
            FolderChangedError, LogFileError: if it changed, or cannot be read.
            FileNotFoundError: if it is gone.
        """
        with reading(segment.log_path):
            file_bytes = os.stat(segment.log_path.name, dir_fd=self.fd).st_size
            is_followed = self._has_log(segment.end_offset + 1)
        if file_bytes != segment.file_bytes or not is_followed:
            raise FolderChangedError(f"{segment.log_path}: changed since it was listed; retrying")

    def _has_log(self, base_offset: int) -> bool:
        try:
            os.stat(f"{base_offset:020}.log", dir_fd=self.fd)
        except FileNotFoundError:
            return False
        return True


@contextmanager
def opened(
    name: TopicIdPartition, found: PartitionDir, locks: LogDirLocks
) -> Iterator[OwnedFolder]:
    """Open a partition's folder.

    Raises:
        LogFileError: UNREADABLE.
        FileNotFoundError: if it is gone.
    """
    with reading(found.path):
        fd = os.open(found.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield OwnedFolder(name, found, locks, fd)
    finally:
        os.close(fd)


_DELETED = ".deleted"
_SWAP = ".swap"
_INDEXES = (".index", ".timeindex", ".txnindex")
_LOG = re.compile(r"(\d{20})\.log")
_LOG_DELETED = re.compile(r"(\d{20})\.log\.deleted")


def delete_segment_files(segment: LocalSegment, folder_fd: int) -> None:
    """Delete the oldest segment of a log. Readers continue with the open file.

    Args:
        folder_fd: of the segment's folder, open.

    Raises:
        LogFileError: UNREADABLE: the files cannot be changed; `finish_deletions` finishes the
            deletion.
        FileNotFoundError: if the segment is gone.
    """
    with reading(segment.directory):
        deleted = f"{segment.log_path.name}{_DELETED}"
        os.rename(segment.log_path.name, deleted, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
        # Segments go in order, and indexes after their log, even across a power loss.
        os.fsync(folder_fd)
        failpoint("local.log_renamed")
        _remove_rest(segment.directory, folder_fd, segment.base_offset)


def finish_deletions(directory: Path, folder_fd: int) -> int:
    """Finish the deletions that a killed run left in a folder; return their number.

    Files above the oldest segment are a broker's leftovers, which its next start removes: the
    snapshot at that offset may be another segment's.

    Args:
        folder_fd: of that folder, open.

    Raises:
        LogFileError: UNREADABLE, or a broker was interrupted while it replaced segments by a
            rewritten one: its next start finishes the replacement.
    """
    with reading(directory):
        names = os.listdir(folder_fd)
        swapped = next((name for name in names if name.endswith(_SWAP)), None)
        if swapped is not None:
            reason = "a broker was interrupted while it replaced segments; start it to finish that"
            raise LogFileError(ProblemKind.UNREADABLE, directory / swapped, reason)
        bases = sorted(int(match[1]) for name in names if (match := _LOG_DELETED.fullmatch(name)))
        there = [int(match[1]) for name in names if (match := _LOG.fullmatch(name))]
        left = [base for base in bases if there and base < min(there)]
        for base in left:
            _remove_rest(directory, folder_fd, base)
    return len(left)


def _remove_rest(directory: Path, folder_fd: int, base_offset: int) -> None:
    stem = f"{base_offset:020}"
    for suffix in _INDEXES:
        _remove(f"{stem}{suffix}", folder_fd)
    _remove(snapshot_path(directory, base_offset).name, folder_fd)
    failpoint("local.indexes_removed")
    _remove(f"{stem}.log{_DELETED}", folder_fd)
    failpoint("local.log_removed")


def _remove(name: str, folder_fd: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder_fd)
