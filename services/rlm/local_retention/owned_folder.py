"""A partition's folder, held open while segments of it are deleted."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from services.api.ids import TopicIdPartition
from services.rlm.kafka_log.checkpoints import read_partition_metadata
from services.rlm.kafka_log.log_dir import PartitionDir
from services.rlm.kafka_log.partition_dir import LocalSegment, reading
from services.rlm.local_retention.directory_locks import LogDirLocks


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
