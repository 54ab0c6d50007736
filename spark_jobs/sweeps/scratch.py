"""Make a directory for the files of one sweep, and remove those that killed sweeps have left."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from spark_jobs.sweeps.sweep_error import SweepError

TEMPORARY = "TMPDIR"
"""The variable that names the directory for temporary files."""

_PREFIX = "sediment-sweep-"
_LOCK = ".lock"


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """Make a temporary directory that is removed at the end: by the next sweep after a kill.

    Its lock is held for as long as this process lives.

    Raises:
        SweepError: it cannot be made.
    """
    with disk_errors(TEMPORARY):
        _remove_abandoned(Path(tempfile.gettempdir()))
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
        lock = (directory / _LOCK).open("w")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def disk_errors(option: str) -> Iterator[None]:
    """Turn an error of a file of a sweep, such as that of a full disk, into SweepError.

    Args:
        option: that names another place for the files.
    """
    try:
        yield
    except ConnectionError:
        raise
    except OSError as e:
        where = "" if e.filename is None else f"{e.filename}: "
        raise SweepError(
            f"{option}: {where}{e.strerror or e}; free space there, or name another directory"
        ) from e


def _remove_abandoned(parent: Path) -> None:
    for directory in parent.glob(f"{_PREFIX}*"):
        # One of another user, or one that is just being made or removed.
        with suppress(OSError):
            if directory.stat().st_uid != os.geteuid() or directory.is_symlink():
                continue
            with (directory / _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
