"""The directory that a stack keeps its data in, used by one stack at a time.

Ours is one that was new or empty when it was first used; a file in it says so from then on. No
other is written to, let alone emptied: a slip in a path must not cost a user's files.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import platformdirs

from services.local.leftovers import end_leftover

POSTGRES = "postgres"
S3 = "s3"
SERVICES = "services"
INDEX_CACHE = "index-cache"
STATE = "stack.json"
OWNER = "stack.pid"

_FOLDERS = (POSTGRES, S3, SERVICES, INDEX_CACHE)
_FILES = (STATE, f"{STATE}.new", OWNER, f"{OWNER}.new")
"""Besides the lock and the mark, which stay."""
_LOCK = "lock"
_MARK = "sediment-data"
_MARK_TEXT = "The data of `sediment up`. Without this file it does not use the directory.\n"
_SHARED_BY_USERS_MODE = 0o711
_TOLD_NAMES = 3


class DataDirectoryError(RuntimeError):
    """The directory cannot be used; the message says why and what to do."""


def default_directory() -> Path:
    """The user's data directory; for root one that PostgreSQL's own user can enter too."""
    if os.geteuid() == 0:
        return Path("/var/tmp/sediment")
    return platformdirs.user_data_path("sediment", appauthor=False)


def check_apart(directory: Path, log_dirs: Sequence[Path]) -> None:
    """Raise DataDirectoryError where a log directory is `directory`, lies in it or holds it."""
    ours = Path(os.path.realpath(directory))
    for log_dir in log_dirs:
        brokers = Path(os.path.realpath(log_dir))
        if ours.is_relative_to(brokers) or brokers.is_relative_to(ours):
            raise DataDirectoryError(
                f"{directory}: the log directory {log_dir} is the same, lies in it or holds it; "
                "choose another data directory"
            )


@contextmanager
def locked(directory: Path, fresh: bool) -> Iterator[None]:
    """Have the directory for ourselves; end what a killed run left running in it.

    With `fresh` all that stacks made in it is removed first; what else lies there stays.

    Raises:
        DataDirectoryError: another stack uses it, or it is somebody else's, and as it was.
    """
    with _refusals_named(directory):
        _check_is_ours(directory)
        directory.mkdir(parents=True, exist_ok=True, mode=_SHARED_BY_USERS_MODE)
        lock = (directory / _LOCK).open("w")
    with lock:  # closing it, or dying, lets go of the lock
        with _refusals_named(directory):
            _take(directory, lock)
            if fresh:
                _empty(directory)
        yield


@contextmanager
def _refusals_named(directory: Path) -> Iterator[None]:
    """The operating system's as DataDirectoryError."""
    try:
        yield
    except OSError as e:
        why = e.strerror or type(e).__name__
        raise DataDirectoryError(
            f"{directory} cannot be used: {why}; choose another directory"
        ) from e


def _take(directory: Path, lock: TextIO) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as e:
        raise DataDirectoryError(
            f"{directory}: another stack is running on this directory; "
            "stop it, or choose another directory"
        ) from e
    (directory / _MARK).write_text(_MARK_TEXT)
    for folder in _FOLDERS:
        for pid_file in (directory / folder).glob("*.pid"):
            end_leftover(pid_file)


def _check_is_ours(directory: Path) -> None:
    """Writes nothing. One that is not there will be ours."""
    try:
        owner = directory.stat().st_uid
    except FileNotFoundError:
        return
    if owner != os.geteuid():
        raise DataDirectoryError(f"{directory} belongs to another user; choose another directory")
    names = set(os.listdir(directory))
    if not names or _MARK in names or _is_ours_unmarked(directory, names):
        return
    raise DataDirectoryError(
        f"{directory} holds {_told(names)} and is no data directory of Sediment's; it was left as "
        "it is: choose an empty or a new one"
    )


def _is_ours_unmarked(directory: Path, names: set[str]) -> bool:
    """Taken into use before there were marks: the lock was the first thing made in it."""
    if not names <= {_LOCK, *_FOLDERS, *_FILES}:
        return False
    return _LOCK in names and (directory / _LOCK).lstat().st_size == 0


def _told(names: set[str]) -> str:
    strange = sorted(names - {_LOCK, *_FOLDERS, *_FILES}) or sorted(names)
    others = len(strange) - _TOLD_NAMES
    return ", ".join(strange[:_TOLD_NAMES]) + (f" and {others} more" if others > 0 else "")


def _empty(directory: Path) -> None:
    for entry in (directory / name for name in (*_FOLDERS, *_FILES)):
        # Of a link only the link is ours.
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)
