"""Write a partition's folder and its entries in the checkpoints of a broker's log directory.

A partition is written into NAME.restoring, which is renamed when it is complete. Kafka does not
start on a log directory with a folder of such a name, so that no broker begins an empty log while
the restore has not ended.
"""

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import IO

from services.api.errors import InvalidRequestError
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.lineage import checkpoint_text
from services.api.segments import SegmentLeaderEpoch
from services.common.failpoints import failpoint

LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
SUFFIX = ".restoring"
_LOCK_FILE = ".lock"
_PLAN = "restore.plan"
_CHECKPOINTS = Lock()


@contextmanager
def locked(log_dir: Path) -> Iterator[None]:
    """Hold the lock of a log directory, which a broker holds while it runs.

    Raises:
        InvalidRequestError: another process holds it.
    """
    with (log_dir / _LOCK_FILE).open("a") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            reason = "a broker or another restore uses it; stop the broker first"
            raise InvalidRequestError(f"{log_dir}: {reason}") from e
        _give_to_owner(log_dir, [log_dir / _LOCK_FILE])
        yield


class RestoringFolder:
    """The folder of one partition while it is restored."""

    def __init__(self, log_dir: Path, tp: TopicIdPartition) -> None:
        self._log_dir = log_dir
        self._tp = tp
        self._final = log_dir / f"{tp.topic}-{tp.partition}"
        self.path = log_dir / f"{self._final.name}{SUFFIX}"

    def check(self, plan: str) -> None:
        """Check that the partition can be restored here.

        Args:
            plan: what is restored; a restore continues only its own.

        Raises:
            InvalidRequestError: the partition has records in the log directory, or the folder is
                of another plan.
        """
        logs = self._final.glob("*.log")
        if any(log.stat().st_size or int(log.stem) for log in logs):
            raise InvalidRequestError(
                f"{self._final}: has records, and a restore replaces none; move the folder away, "
                "or restore into a new topic"
            )
        found = self.path / _PLAN
        if found.exists() and found.read_text() != plan:
            raise InvalidRequestError(
                f"{self.path}: is of a restore with other options ({found.read_text()}); repeat "
                "its command, or remove the folder"
            )

    def begin(self, plan: str) -> None:
        """Create the folder, or continue in that of a restore that did not end."""
        self.path.mkdir(exist_ok=True)
        write(self.path / _PLAN, plan.encode())
        text = f"version: 0\ntopic_id: {uuid_to_text(self._tp.topic_id)}"
        write(self.path / PARTITION_METADATA, text.encode())

    def discard(self) -> None:
        shutil.rmtree(self.path)

    def file(self, offset: int, suffix: str) -> Path:
        return self.path / f"{offset:020}{suffix}"

    def publish(
        self,
        epochs: Iterable[SegmentLeaderEpoch],
        log_start_offset: int,
        log_end_offset: int,
        files: Iterable[Path],
    ) -> None:
        """Finish the folder, add the partition to the checkpoints, and give it its name.

        Args:
            files: those that segments consist of; others, of an earlier try, are removed.
        """
        write(self.path / LEADER_EPOCHS, checkpoint_text([*epochs]).encode())
        wanted = {*files, self.path / LEADER_EPOCHS, self.path / PARTITION_METADATA}
        for path in self.path.iterdir():
            if path not in wanted and path.name != _PLAN:
                path.unlink()
        with _CHECKPOINTS:
            for name, offset in (
                (RECOVERY_POINTS, log_end_offset),
                (HIGH_WATERMARKS, log_end_offset),
                (LOG_STARTS, log_start_offset),
            ):
                _add_offset(self._log_dir, name, f"{self._tp.topic} {self._tp.partition}", offset)
        _give_to_owner(self._log_dir, [self.path, *self.path.iterdir()])
        _sync(self.path)
        with suppress(FileNotFoundError):
            shutil.rmtree(self._final)  # without records: a broker has made it
        failpoint("restore.recorded")
        self.path.rename(self._final)
        (self._final / _PLAN).unlink()
        _sync(self._log_dir)


def _add_offset(log_dir: Path, name: str, partition: str, offset: int) -> None:
    """Set a partition's offset in a checkpoint, and keep those of the others.

    Raises:
        InvalidRequestError: the file is damaged.
    """
    path = log_dir / name
    text = path.read_text() if path.exists() else ""
    version, _, *lines = text.split("\n") if text else ("0", "")
    entries = dict(line.rsplit(" ", 1) for line in lines if line.count(" ") == 2)
    if version != "0" or len(entries) != sum(map(bool, lines)):
        raise InvalidRequestError(f"{path}: damaged; remove it, and the broker writes another one")
    entries[partition] = str(offset)
    lines = ["0", str(len(entries)), *(f"{name} {offset}" for name, offset in entries.items()), ""]
    write(path, "\n".join(lines).encode())
    _give_to_owner(log_dir, [path])


@contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """Write a file that has its name only when all of it is on the disk."""
    part = path.with_name(f"{path.name}.tmp")
    with part.open("wb", buffering=1024 * 1024) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)


def write(path: Path, data: bytes) -> None:
    with writing(path) as file:
        file.write(data)


def _give_to_owner(log_dir: Path, paths: Iterable[Path]) -> None:
    """Let the broker's user own what root has written."""
    if os.geteuid() == 0:
        owner = log_dir.stat()
        for path in paths:
            os.chown(path, owner.st_uid, owner.st_gid)


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
