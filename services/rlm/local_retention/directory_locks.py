"""Kafka's own lock on a log directory: who holds it is the one that may change what lies there."""

import fcntl
import os
import struct
from collections.abc import Sequence
from pathlib import Path

from services.rlm.kafka_log.checkpoints import META_PROPERTIES
from services.rlm.kafka_log.errors import LogDirError

LOCK_FILE = ".lock"
_FLOCK = "hhqqi"
"""Linux's struct flock: type, whence, start, length, pid."""
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


def is_held_by_another(log_dir: Path) -> bool:
    """Whether another process, a broker as a rule, holds the lock now. Takes nothing, so that a
    broker that starts at this moment is not kept out. False where that cannot be seen, as from
    another machine.

    Not for a process that may hold the lock itself: it would lose it.
    """
    try:
        fd = os.open(log_dir / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, *_ = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    except OSError:
        return False
    finally:
        os.close(fd)
    return bool(kind != fcntl.F_UNLCK)


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
