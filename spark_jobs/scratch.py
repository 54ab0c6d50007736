"""Make a directory for the files of one sweep, and remove those that killed sweeps have left."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "sediment-sweep-"
_LOCK = ".lock"


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """Make a temporary directory that is removed at the end: by the next sweep after a kill.

    Its lock is held for as long as this process lives.
    """
    _remove_abandoned(Path(tempfile.gettempdir()))
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
    with (directory / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def _remove_abandoned(parent: Path) -> None:
    for directory in parent.glob(f"{_PREFIX}*"):
        # One of another user, or one that is just being made or removed.
        with suppress(OSError):
            if directory.stat().st_uid != os.geteuid() or directory.is_symlink():
                continue
            with (directory / _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
