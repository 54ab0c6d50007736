"""One copier at a time: a lock on a partition's folder."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from services.rlm.kafka_log.partition_dir import reading


class PartitionBusyError(Exception):
    """Another process copies this partition now."""


@contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Hold the folder's lock inside, so that no copy under way is taken for one left behind.

    The lock is on the folder itself, opened for reading: nothing is written, Kafka does not use it,
    and it ends with the process, however that ends.

    Raises:
        PartitionBusyError: someone else holds it.
        FileNotFoundError: the folder is gone.
        LogFileError: UNREADABLE, also where its file system knows no locks.
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
        raise PartitionBusyError(f"{directory}: another process copies it now") from e
