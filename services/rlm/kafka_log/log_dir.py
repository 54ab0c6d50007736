"""Find the partitions in a broker's log directories."""

import fcntl
import math
import os
import re
import shutil
import struct
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TypeVar

from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import (
    UNKNOWN_LEADER,
    Problem,
    ProblemKind,
)
from services.api.topic_config import is_internal_topic
from services.common.bounded_file import open_regular
from services.rlm.kafka_log.checkpoints import (
    META_PROPERTIES,
    PARTITION_METADATA,
    HighWatermarks,
    read_broker_id,
    read_log_start_offsets,
    read_partition_metadata,
    read_properties,
)
from services.rlm.kafka_log.partition_dir import (
    Fingerprint,
    LogDirError,
    LogFileError,
    fingerprint_of,
    list_segments,
)
from services.rlm.problem_log import ProblemLog

_PARTITION_DIR = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>0|[1-9]\d{0,9})")
_LOG_FILE = re.compile(r"[0-9]{20}\.log")


_Fingerprints = tuple[Fingerprint, Fingerprint]
"""The fingerprints of the folder and of its partition.metadata."""

LOCK_FILE = ".lock"

_FLOCK = "hhqqi"
"""Linux's struct flock: type, whence, start, length, pid."""


T = TypeVar("T")


class SkippedFolder(Enum):
    """Why a partition's folder is not copied."""

    DELETE = "that the broker deletes (-delete)"
    FUTURE = "that the broker moves to another log directory (-future)"
    STRAY = "of partitions that the broker does not have (-stray)"
    EMPTY = "without a segment"
    INTERNAL = "of internal topics"


_OTHER_FOLDERS = {
    "-delete": SkippedFolder.DELETE,
    "-future": SkippedFolder.FUTURE,
    "-stray": SkippedFolder.STRAY,
}


@dataclass(frozen=True, slots=True)
class PartitionDir:
    """The folder of a partition in a log directory.

    Attributes:
        log_start_offset: of log-start-offset-checkpoint; None if the file does not list the
            partition.
        high_watermarks: of the log directory, for all of its partitions.
    """

    topic_id_partition: TopicIdPartition
    path: Path
    log_start_offset: int | None
    high_watermarks: HighWatermarks


@dataclass
class LogDirs:
    """The result of a scan.

    Attributes:
        broker_id: of meta.properties.
        problems: directories that cannot be used while others can, and folders of partitions that
            cannot be copied.
        skipped: partitions' folders that are not copied: how many, by the reason.
        fingerprints: of each folder in which a partition was found.
        high_watermarks: of each log directory.
        directory_ids: of each meta.properties; brokers before Kafka 3.7 write none.
    """

    broker_id: int
    partitions: dict[TopicIdPartition, PartitionDir] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    skipped: Counter[SkippedFolder] = field(default_factory=Counter)
    fingerprints: dict[Path, tuple[_Fingerprints, TopicIdPartition]] = field(default_factory=dict)
    high_watermarks: dict[Path, HighWatermarks] = field(default_factory=dict)
    directory_ids: frozenset[str] = frozenset()


def find_partitions(log_dirs: Sequence[Path], before: LogDirs | None = None) -> LogDirs:
    """Find the partitions in `log_dirs`.

    Internal topics (`__*`), folders named `-delete`, `-future` and `-stray`, and empty ones are
    skipped, and counted.

    Args:
        before: the last result: unchanged folders are not read again.

    Raises:
        LogDirError: if none of the directories can be used (missing, empty, unreadable, not
            Kafka's), one is named twice, or they have no broker id or several.
    """
    usable, problems, last_error = [], [], None
    for log_dir in log_dirs:
        try:
            _check_is_kafkas(log_dir)
            usable.append(log_dir)
        except LogDirError as e:
            last_error = e
            problems.append(Problem(ProblemKind.UNREADABLE, str(e.path), e.reason))
    if last_error is not None and not usable:
        raise last_error
    _check_are_different(usable)
    broker_id = _broker_id(usable)
    before = before or LogDirs(broker_id)
    found = LogDirs(broker_id, problems=problems, directory_ids=_directory_ids(usable))
    for log_dir in usable:
        known = before.high_watermarks.get(log_dir)
        found.high_watermarks[log_dir] = known or HighWatermarks(log_dir)
        _scan(log_dir, found, before.fingerprints)
    return found


def _check_is_kafkas(log_dir: Path) -> None:
    try:
        names = os.listdir(log_dir)
    except FileNotFoundError as e:
        raise LogDirError(log_dir, "no such directory") from e
    except OSError as e:
        raise LogDirError(log_dir, e.strerror or type(e).__name__) from e
    if not names:
        raise LogDirError(log_dir, "is empty")
    if META_PROPERTIES in names:
        return
    if any(_PARTITION_DIR.fullmatch(name) and _has_log(log_dir / name) for name in names):
        reason = f"has partitions but no {META_PROPERTIES} with the broker's id"
        raise LogDirError(log_dir, reason)
    if any(map(_LOG_FILE.fullmatch, names)):
        raise LogDirError(log_dir, "is a partition's folder; name the log directory above it")
    raise LogDirError(log_dir, f"not a Kafka log directory: no {META_PROPERTIES}, no partitions")


def free_bytes(log_dirs: Sequence[Path]) -> float:
    """Return what the fullest of the directories' disks has left; NaN if one cannot be read."""
    try:
        return min(shutil.disk_usage(log_dir).free for log_dir in log_dirs)
    except OSError:
        return math.nan


def _check_are_different(log_dirs: Sequence[Path]) -> None:
    """Refuse a directory that is named twice: its partitions would be found in two places."""
    named: dict[str, Path] = {}
    for log_dir in log_dirs:
        real = os.path.realpath(log_dir)
        if real in named:
            raise LogDirError(log_dir, f"is named twice, also as {named[real]}")
        named[real] = log_dir


def _broker_id(log_dirs: Sequence[Path]) -> int:
    ids: dict[int, Path] = {}
    for log_dir in log_dirs:
        try:
            broker_id = read_broker_id(log_dir)
        except LogFileError as e:
            raise LogDirError(e.path, e.reason) from e
        if broker_id is None:
            raise LogDirError(log_dir / META_PROPERTIES, "has neither node.id nor broker.id")
        ids.setdefault(broker_id, log_dir)
    return _only(ids, "brokers")


def _directory_ids(log_dirs: Sequence[Path]) -> frozenset[str]:
    """Read the ids that the directories got when they were formatted, as far as they have one."""
    ids = set()
    for log_dir in log_dirs:
        with suppress(LogFileError):
            ids.add(read_properties(log_dir).get("directory.id", ""))
    return frozenset(ids - {""})


def read_cluster_id(log_dirs: Sequence[Path]) -> str:
    """Read cluster.id from the directories' meta.properties; directories without one are skipped.

    Raises:
        LogDirError: if none has one, or they have several.
    """
    ids: dict[str, Path] = {}
    for log_dir in log_dirs:
        with suppress(LogFileError):
            cluster_id = read_properties(log_dir).get("cluster.id")
            if cluster_id is not None:
                ids.setdefault(cluster_id, log_dir)
    if not ids:
        raise LogDirError(log_dirs[0] / META_PROPERTIES, "has no cluster.id")
    return _only(ids, "clusters")


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """A broker as its log directories name it.

    Attributes:
        directory_id: the first of their ids; made of the broker's id if they have none (before
            Kafka 3.7).
    """

    cluster_id: str
    directory_id: str
    broker_id: int


def read_identity(log_dirs: Sequence[Path], broker_id: int) -> BrokerIdentity | None:
    """Read a broker's identity from its log directories; None if they name no cluster."""
    try:
        cluster_id = read_cluster_id(log_dirs) if log_dirs else None
    except LogDirError:
        return None
    if cluster_id is None:
        return None
    directory_id = min(_directory_ids(log_dirs), default=f"broker {broker_id}")
    return BrokerIdentity(cluster_id, directory_id, broker_id)


def _only(ids: Mapping[T, Path], kind: str) -> T:
    """Return the only id; refuse directories with several ids."""
    if len(ids) > 1:
        found = ", ".join(f"{id} in {log_dir / META_PROPERTIES}" for id, log_dir in ids.items())
        raise LogDirError(next(iter(ids.values())), f"log directories of several {kind}: {found}")
    return next(iter(ids))


def _scan(
    log_dir: Path,
    log_dirs: LogDirs,
    before: Mapping[Path, tuple[_Fingerprints, TopicIdPartition]],
) -> None:
    try:
        starts = read_log_start_offsets(log_dir)
    except LogFileError as e:
        starts = {}
        log_dirs.problems.append(e.problem(blocked_segments=0))
    high_watermarks = log_dirs.high_watermarks[log_dir]
    try:
        high_watermarks.refresh()
    except LogFileError as e:
        log_dirs.problems.append(e.problem(blocked_segments=0))
    others = {(name.topic, name.partition): p.path for name, p in log_dirs.partitions.items()}
    for path, topic, partition in _partition_folders(log_dir, log_dirs.skipped):
        fingerprints = _folder_fingerprints(path)
        known, name = before.get(path, (None, None))
        try:
            if name is None or fingerprints is None or fingerprints != known:
                if not (path.is_dir() and _has_log(path)):
                    log_dirs.skipped[SkippedFolder.EMPTY] += 1
                    continue
                name = read_partition_metadata(path, topic, partition)
            if (topic, partition) in others:
                reason = f"the same partition is also in {others[topic, partition]}"
                raise LogFileError(ProblemKind.PARTITION_METADATA_INVALID, path, reason)
        except LogFileError as e:
            if path.exists():
                log_dirs.problems.append(e.problem(_rolled_segments(path)))
        else:
            start = starts.get((topic, partition))
            log_dirs.partitions[name] = PartitionDir(name, path, start, high_watermarks)
            if fingerprints is not None:
                log_dirs.fingerprints[path] = fingerprints, name


def _partition_folders(
    log_dir: Path, skipped: Counter[SkippedFolder]
) -> Iterator[tuple[Path, str, int]]:
    for name in sorted(os.listdir(log_dir)):
        match = _PARTITION_DIR.fullmatch(name)
        if match is None:
            suffix = name[name.rfind("-") :] if "-" in name else ""
            if suffix in _OTHER_FOLDERS:
                skipped[_OTHER_FOLDERS[suffix]] += 1
        elif is_internal_topic(match["topic"]):
            skipped[SkippedFolder.INTERNAL] += 1
        else:
            yield log_dir / name, match["topic"], int(match["partition"])


def _folder_fingerprints(path: Path) -> _Fingerprints | None:
    folder, metadata = fingerprint_of(path), fingerprint_of(path / PARTITION_METADATA)
    return None if folder is None or metadata is None else (folder, metadata)


def _has_log(path: Path) -> bool:
    """Return whether a folder has a log, or cannot be read."""
    try:
        return bool(list_segments(path))
    except LogFileError:
        return path.is_dir()
    except OSError:
        return False


def _rolled_segments(path: Path) -> int:
    try:
        return max(len(list_segments(path)) - 1, 0)
    except (LogFileError, OSError):
        return 0


def is_held_by_another(log_dir: Path) -> bool:
    """Return whether another process, usually a broker, holds the lock now.

    This does not acquire the lock, so that a broker can start at the same moment. The result is
    False if the lock is not visible, for example from another machine. A process that holds the
    lock itself would lose it by this call.
    """
    try:
        fd = open_regular(log_dir / LOCK_FILE)
    except OSError:
        return False
    try:
        request = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, *_ = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_GETLK, request))
    except OSError:
        return False
    finally:
        os.close(fd)
    return bool(kind != fcntl.F_UNLCK)


class LogDirectories:
    """Scan the broker's log directories and cache the last result. Thread-safe.

    Raises:
        LogDirError: if none of the directories can be used.
    """

    def __init__(self, log_dirs: Sequence[Path]) -> None:
        self._log_dirs = tuple(log_dirs)
        self._lock = threading.Lock()
        self._scanned = find_partitions(log_dirs) if log_dirs else LogDirs(UNKNOWN_LEADER)
        self.broker_id = self._scanned.broker_id
        self.problems = tuple(self._scanned.problems)
        self._problem_log = ProblemLog()
        self._problem_log.log("the log directories", self.problems)

    @property
    def are_none(self) -> bool:
        """Return whether RLM has no log directories at all."""
        return not self._log_dirs

    @property
    def partitions(self) -> Collection[TopicIdPartition]:
        return self._scanned.partitions

    @property
    def directory_ids(self) -> frozenset[str]:
        return self._scanned.directory_ids

    def folder_of(self, name: TopicIdPartition) -> PartitionDir | None:
        return self._scanned.partitions.get(name)

    def scan(self) -> None:
        """Scan the directories again, if there are any.

        Raises:
            LogDirError: if none can be used now; the last result stays.
        """
        if self.are_none:
            return
        with self._lock:
            try:
                found = find_partitions(self._log_dirs, self._scanned)
            except LogDirError as e:
                self.problems = (Problem(ProblemKind.UNREADABLE, str(e.path), e.reason),)
                raise
            self._scanned, self.problems = found, tuple(found.problems)
            self._problem_log.log("the log directories", self.problems)

    def scan_for(self, names: Collection[TopicIdPartition]) -> None:
        """Scan again if one of these was not found yet; the next scan retries after a failure."""
        if self._log_dirs and any(self.folder_of(name) is None for name in names):
            with suppress(LogDirError):
                self.scan()
