"""The directory that a stack keeps its data in, used by one stack at a time."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from services.local.leftovers import end_leftover

_LOCK = "lock"
_SHARED_BY_USERS_MODE = 0o711


class DataDirectoryError(RuntimeError):
    """The directory cannot be used; the message says why and what to do."""


def default_directory() -> Path:
    """The user's data directory; for root one that PostgreSQL's own user can enter too."""
    if os.geteuid() == 0:
        return Path("/var/tmp/sediment")
    return platformdirs.user_data_path("sediment", appauthor=False)


@contextmanager
def locked(directory: Path, fresh: bool) -> Iterator[None]:
    """Have the directory for ourselves; end what a killed run left running in it.

    With `fresh` all that it holds is removed first.

    Raises:
        DataDirectoryError: another stack uses it, or it is somebody else's.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=_SHARED_BY_USERS_MODE)
    if directory.stat().st_uid != os.geteuid():
        raise DataDirectoryError(f"{directory} belongs to another user; choose another directory")
    with (directory / _LOCK).open("w") as lock:  # closing it, or dying, lets go of the lock
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise DataDirectoryError(
                f"{directory}: another stack is running on this directory; "
                "stop it, or choose another directory"
            ) from e
        for pid_file in directory.glob("*/*.pid"):
            end_leftover(pid_file)
        if fresh:
            _empty(directory)
        yield


def _empty(directory: Path) -> None:
    for entry in directory.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != _LOCK:
            entry.unlink()
