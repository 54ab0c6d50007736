"""Lock a partition's folder while it is copied."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from services.rlm.kafka_log.partition_dir import reading


class PartitionBusyError(Exception):
    """The error if another process is copying this partition."""


@contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Hold the folder's lock, so that no running copy is mistaken for a dangling one.

    Nothing is written, Kafka does not use the lock, and the kernel releases it with the process.

    Raises:
        PartitionBusyError: if another process holds the lock.
        FileNotFoundError: if the folder is gone.
        LogFileError: UNREADABLE, or the file system has no locks.
    """
    with reading(directory):
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with reading(directory):
            _lock(fd, directory)
        yield
    finally:
        os.close(fd)


def _lock(fd: int, directory: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as e:
        raise PartitionBusyError(
            f"{directory}: another process is copying this partition; retrying"
        ) from e
