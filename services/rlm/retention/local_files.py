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
    "stop the broker (or the other RLM) that runs on the directory, or leave "
    "RLM_LOCAL_RETENTION_ENFORCE off: the broker deletes by its own retention.*"
)


class LogDirLocks:
    """The locks of all log directories, held from the start until `close` or the process's end,
    however that ends: no broker starts on the directories meanwhile.

    Java's FileChannel.tryLock locks with fcntl, so that the two meet. Such a lock is the process's:
    it keeps out others, not a second one in here, and is lost when anything here opens the same
    file and closes it.

    Source: LogManager.lockLogDirs.

    Raises:
        LogDirError: somebody else holds one, or a directory cannot be written to; none is held
            then.
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
        """
        Raises:
            LogDirError: the directory is not the one that was locked: not given at the start, or
                another file system or lock file is at its path now.
        """
        fd = self._fds.get(log_dir)
        try:
            if fd is not None and os.path.samestat(os.fstat(fd), os.stat(log_dir / LOCK_FILE)):
                return
        except OSError as e:
            raise LogDirError(log_dir, f"{LOCK_FILE}: {e.strerror or type(e).__name__}") from e
        reason = f"its {LOCK_FILE} is not the one that is held: nothing is deleted there; restart"
        raise LogDirError(log_dir, reason)

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()


def _lock(log_dir: Path) -> int:
    path = log_dir / LOCK_FILE
    if not (log_dir / META_PROPERTIES).is_file():
        reason = f"cannot be owned: no {META_PROPERTIES}, so no broker's; take it out of the list"
        raise LogDirError(log_dir, reason)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as e:
        why = e.strerror or type(e).__name__
        reason = f"{LOCK_FILE} cannot be opened for writing ({why}), which owning it takes"
        raise LogDirError(log_dir, reason) from e
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as e:
        os.close(fd)
        raise LogDirError(log_dir, f"somebody holds its {LOCK_FILE}: {_REMEDY}") from e
    except OSError as e:
        os.close(fd)
        reason = f"{LOCK_FILE} cannot be locked ({e.strerror or type(e).__name__})"
        raise LogDirError(log_dir, reason) from e
    return fd


class FolderChangedError(Exception):
    """What lies there is not what was decided on."""


class OwnedFolder:
    """One folder, whatever lies at its path by now.

    Attributes:
        fd: what is renamed and removed by it, is in this folder and in no other.
    """

    def __init__(self, name: TopicIdPartition, found: PartitionDir, locks: LogDirLocks, fd: int):
        self.fd = fd
        self._name = name
        self._path = found.path
        self._locks = locks

    def require_owned(self) -> None:
        """It is still the partition's, and in a directory that this process owns.

        Raises:
            LogDirError, LogFileError, FolderChangedError: it is not, or cannot be looked at.
            FileNotFoundError: nothing is at its path.
        """
        self._locks.require_held(self._path.parent)
        lies_here = read_partition_metadata(self._path, self._name.topic, self._name.partition)
        if lies_here != self._name:
            raise FolderChangedError(f"{self._path}: now a log of topic id {lies_here.topic_id}")
        with reading(self._path):
            if not os.path.samestat(os.fstat(self.fd), os.stat(self._path)):
                raise FolderChangedError(f"{self._path}: another folder than the one looked at")

    def require_rolled(self, segment: LocalSegment) -> None:
        """It has the size that it was listed with, and another one still follows it.

        Raises:
            FolderChangedError, LogFileError: it has not, or cannot be looked at.
            FileNotFoundError: it is gone.
        """
        with reading(segment.log_path):
            size_bytes = os.stat(segment.log_path.name, dir_fd=self.fd).st_size
            is_followed = self._has_log(segment.end_offset + 1)
        if size_bytes != segment.size_bytes or not is_followed:
            raise FolderChangedError(f"{segment.log_path}: is not what it was when it was listed")

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
    """
    Raises:
        LogFileError: UNREADABLE.
        FileNotFoundError: it is gone.
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
    """Delete the oldest segment of a log. What reads it goes on with the file that it has open.

    Args:
        folder_fd: of the segment's folder, open.

    Raises:
        LogFileError: UNREADABLE: the files cannot be changed; what was begun, `finish_deletions`
            ends.
        FileNotFoundError: it is gone.
    """
    with reading(segment.directory):
        deleted = f"{segment.log_path.name}{_DELETED}"
        os.rename(segment.log_path.name, deleted, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
        # Over a power loss, too, segments go in their order and indexes after their log.
        os.fsync(folder_fd)
        failpoint("local.log_renamed")
        _remove_rest(segment.directory, folder_fd, segment.base_offset)


def finish_deletions(directory: Path, folder_fd: int) -> int:
    """End the deletions that a killed run has left in a folder; how many.

    What lies among the segments that are there is a broker's own leftover, and its next start's to
    clear away: the snapshot at that offset may be another segment's.

    Args:
        folder_fd: of that folder, open.

    Raises:
        LogFileError: UNREADABLE, also where a broker was cut off while it put a rewritten segment
            in the place of others: its next start does that, so that nothing is sure here yet.
    """
    with reading(directory):
        names = os.listdir(folder_fd)
        swapped = next((name for name in names if name.endswith(_SWAP)), None)
        if swapped is not None:
            reason = "a broker was cut off while it replaced segments; its next start ends that"
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
