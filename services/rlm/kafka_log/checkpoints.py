"""Read the small text files of a log directory."""

import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from services.api.errors import InvalidRequestError
from services.api.ids import TopicIdPartition, uuid_from_text
from services.api.remote_log_manager import ProblemKind
from services.api.validation import INT32_MAX, INT64_MAX
from services.rlm.kafka_log.partition_dir import (
    MAX_TEXT_FILE_BYTES,
    CachedFile,
    LogFileError,
    read_side_file,
)

META_PROPERTIES = "meta.properties"
PARTITION_METADATA = "partition.metadata"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
_PROPERTY = re.compile(r"^([\w.]+)[ \t]*=[ \t]*(\S+)\s*$", re.MULTILINE)
_BROKER_ID = re.compile(r"[0-9]{1,10}")
_METADATA_FIELD = re.compile(r"^(\w+):\s*(\S*)\s*$", re.MULTILINE)


def read_properties(log_dir: Path) -> dict[str, str]:
    """Read meta.properties; a missing file has no properties.

    Raises:
        LogFileError: UNREADABLE, LIMIT_EXCEEDED.
    """
    data = read_side_file(log_dir / META_PROPERTIES, MAX_TEXT_FILE_BYTES)
    return dict(_PROPERTY.findall((data or b"").decode("utf-8", "replace")))


def read_broker_id(log_dir: Path) -> int | None:
    """Read node.id (KRaft) or broker.id from meta.properties; None if it has neither.

    Raises:
        LogFileError: as read_properties; UNREADABLE also if the number is none of a broker.
    """
    properties = read_properties(log_dir)
    text = properties.get("node.id") or properties.get("broker.id", "")
    if not _BROKER_ID.fullmatch(text):
        return None
    if int(text) > INT32_MAX:
        reason = f"broker id must be 0 to {INT32_MAX}, is {text}"
        raise LogFileError(ProblemKind.UNREADABLE, log_dir / META_PROPERTIES, reason)
    return int(text)


def read_partition_metadata(directory: Path, topic: str, partition: int) -> TopicIdPartition:
    """Read the partition's topic id from its partition.metadata.

    Raises:
        LogFileError: PARTITION_METADATA_MISSING, PARTITION_METADATA_INVALID, UNREADABLE.
    """
    path = directory / PARTITION_METADATA
    data = read_side_file(path, MAX_TEXT_FILE_BYTES)
    if data is None:
        reason = "missing, so that the topic's id is not known"
        raise LogFileError(ProblemKind.PARTITION_METADATA_MISSING, path, reason)
    fields = dict(_METADATA_FIELD.findall(data.decode("utf-8", "replace")))
    try:
        if fields.get("version") != "0":
            raise InvalidRequestError(f"version must be 0, is {fields.get('version')}")
        topic_id = uuid_from_text(fields.get("topic_id", ""), "topic_id")
        return TopicIdPartition(topic_id, topic, partition)
    except InvalidRequestError as e:
        raise LogFileError(ProblemKind.PARTITION_METADATA_INVALID, path, str(e)) from e


def read_log_start_offsets(log_dir: Path) -> dict[tuple[str, int], int]:
    """Read the listed log start offsets by topic and partition; a missing file lists none."""
    return read_offset_checkpoint(log_dir / LOG_START_OFFSETS) or {}


def read_offset_checkpoint(path: Path) -> dict[tuple[str, int], int] | None:
    """Read offsets by topic and partition; None if there is no such file.

    A broker creates an empty file when it first starts; that lists none.

    Source: OffsetCheckpointFile, CheckpointFile.
    """
    data = read_side_file(path, MAX_TEXT_FILE_BYTES)
    if not data:
        return None if data is None else {}
    try:
        version, count, *lines = data.decode("utf-8").split("\n")
        words = [line.split(" ") for line in lines if line]
        offsets = {(topic, int(partition)): int(offset) for topic, partition, offset in words}
        if version != "0":
            raise ValueError(f"version must be 0, is {version!r}")
        for (topic, partition), offset in offsets.items():
            if not (0 <= partition <= INT32_MAX and 0 <= offset <= INT64_MAX):
                raise ValueError(f"impossible offset {offset} of {topic}-{partition}")
        if int(count) != len(words):
            raise ValueError(f"announces {count} entries and has {len(words)}")
    except ValueError as e:
        raise LogFileError(ProblemKind.UNREADABLE, path, f"damaged: {e}") from e
    return offsets


def cleaner_offsets(log_dir: Path) -> CachedFile[dict[tuple[str, int], int] | None]:
    """Return the file in which the log cleaner keeps how far it has cleaned the compacted logs."""
    path = log_dir / CLEANER_OFFSETS
    return CachedFile(path, lambda: read_offset_checkpoint(path))


_REFRESH_EVERY_S = 1.0


class HighWatermarks:
    """Read the replication-offset-checkpoint of one log directory. Thread-safe.

    The broker replaces the file every few seconds and when it stops. It is checked at most once a
    second for all partitions. Its offsets are never too high: a high watermark falls only in an
    unclean leader election.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, log_dir: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path = log_dir / HIGH_WATERMARKS
        self._file = CachedFile(path, lambda: read_offset_checkpoint(path))
        self._clock = clock
        self._lock = threading.Lock()
        self._checked_at_s: float | None = None
        self._offsets: Mapping[tuple[str, int], int] | None = None
        self._failure: LogFileError | None = None

    def refresh(self) -> None:
        """Check the file now."""
        with self._lock:
            self._refresh()
            self._require_readable()

    def of(self, topic: str, partition: int) -> int | None:
        """Return the offset after the last record that every in-sync replica has.

        The result is None without a checkpoint file: then no broker replicates these logs.

        Raises:
            LogFileError: HIGH_WATERMARK_UNKNOWN if the file does not list the partition;
                UNREADABLE, also if it is damaged.
        """
        with self._lock:
            checked_at_s = self._checked_at_s
            if checked_at_s is None or self._clock() - checked_at_s >= _REFRESH_EVERY_S:
                self._refresh()
            self._require_readable()
            offsets = self._offsets
        if offsets is None:
            return None
        if (topic, partition) not in offsets:
            reason = (
                f"does not list {topic}-{partition}: it is not known which of its records all "
                "replicas have; the broker writes that within seconds"
            )
            raise LogFileError(ProblemKind.HIGH_WATERMARK_UNKNOWN, self._path, reason)
        return offsets[topic, partition]

    def _refresh(self) -> None:
        self._checked_at_s = self._clock()
        try:
            self._offsets, self._failure = self._file.value(), None
        except LogFileError as e:
            self._failure = e

    def _require_readable(self) -> None:
        if self._failure is not None:
            failure = self._failure
            raise LogFileError(failure.kind, failure.path, failure.reason)
