"""Read the small text files of a log directory."""

import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from services.api.errors import InvalidRequestError
from services.api.ids import TopicIdPartition, uuid_from_text
from services.api.remote_log_manager import ProblemKind
from services.rlm.kafka_log.errors import LogFileError
from services.rlm.kafka_log.partition_dir import Looks, looks_of, read_side_file

META_PROPERTIES = "meta.properties"
PARTITION_METADATA = "partition.metadata"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
_BROKER_ID = re.compile(r"^(?:node|broker)\.id\s*=\s*(\d{1,10})\s*$", re.MULTILINE)
_METADATA_FIELD = re.compile(r"^(\w+):\s*(\S*)\s*$", re.MULTILINE)


def read_broker_id(log_dir: Path) -> int | None:
    """node.id (KRaft) or broker.id of meta.properties; None where the file or the line is missing.

    Raises:
        LogFileError: UNREADABLE.
    """
    data = read_side_file(log_dir / META_PROPERTIES)
    found = _BROKER_ID.search((data or b"").decode("utf-8", "replace"))
    return int(found[1]) if found else None


def read_partition_metadata(directory: Path, topic: str, partition: int) -> TopicIdPartition:
    """The partition's full name, with the topic id of its partition.metadata.

    Raises:
        LogFileError: PARTITION_METADATA_MISSING, PARTITION_METADATA_INVALID, UNREADABLE.
    """
    path = directory / PARTITION_METADATA
    data = read_side_file(path)
    if data is None:
        reason = "missing: without it the topic's id is not known"
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
    """(topic, partition) to its log start offset, of the logs that are listed; an absent file lists
    none.

    Raises:
        LogFileError: UNREADABLE, also where the file is damaged.
    """
    return read_offset_checkpoint(log_dir / LOG_START_OFFSETS) or {}


def read_offset_checkpoint(path: Path) -> dict[tuple[str, int], int] | None:
    """(topic, partition) to its offset; None where there is no such file. An empty one, as a broker
    makes it when it first starts, lists none.

    Source: OffsetCheckpointFile, CheckpointFile.

    Raises:
        LogFileError: UNREADABLE, also where the file is damaged.
    """
    data = read_side_file(path)
    if not data:
        return None if data is None else {}
    try:
        version, count, *lines = data.decode("utf-8").split("\n")
        words = [line.split(" ") for line in lines if line]
        offsets = {(topic, int(partition)): int(offset) for topic, partition, offset in words}
        if version != "0":
            raise ValueError(f"its version is {version!r}, not 0")
        if int(count) != len(words):
            raise ValueError(f"{count} entries announced, {len(words)} there")
    except ValueError as e:
        raise LogFileError(ProblemKind.UNREADABLE, path, f"damaged: {e}") from e
    return offsets


_LOOKS_EVERY_S = 1.0


class HighWatermarks:
    """The replication-offset-checkpoint of one log directory. Thread-safe.

    The broker puts another file in its place every few seconds
    (replica.high.watermark.checkpoint.interval.ms) and when it stops. It is looked at once a second
    at most, however many partitions ask, and read when it is another one.

    What it says lags behind what the broker knows. It is a bound that is never too high: a high
    watermark does not fall but where a leader was elected uncleanly.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, log_dir: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = log_dir / HIGH_WATERMARKS
        self._clock = clock
        self._lock = threading.Lock()
        self._looked_at_s: float | None = None
        self._read_as: Looks | None = None
        self._offsets: Mapping[tuple[str, int], int] | None = None
        self._failure: LogFileError | None = None

    def look(self) -> None:
        """Look at the file now.

        Raises:
            LogFileError: UNREADABLE, also where the file is damaged.
        """
        with self._lock:
            self._look()
            self._require_readable()

    def of(self, topic: str, partition: int) -> int | None:
        """The high watermark: the offset behind the last record that every in-sync replica has.
        None: there is no such file, so that no broker replicates what lies here.

        Raises:
            LogFileError: HIGH_WATERMARK_UNKNOWN where the file does not list the partition;
                UNREADABLE, also where it is damaged.
        """
        with self._lock:
            looked_at_s = self._looked_at_s
            if looked_at_s is None or self._clock() - looked_at_s >= _LOOKS_EVERY_S:
                self._look()
            self._require_readable()
            offsets = self._offsets
        if offsets is None:
            return None
        if (topic, partition) not in offsets:
            reason = (
                f"does not list {topic}-{partition}: which of its records all replicas have is not "
                "known until the broker, within seconds, has written it down"
            )
            raise LogFileError(ProblemKind.HIGH_WATERMARK_UNKNOWN, self._path, reason)
        return offsets[topic, partition]

    def _look(self) -> None:
        looks = looks_of(self._path)
        self._looked_at_s = self._clock()
        if looks is not None and looks == self._read_as:
            return
        self._read_as = self._offsets = self._failure = None
        try:
            self._offsets = read_offset_checkpoint(self._path)
            self._read_as = looks
        except LogFileError as e:
            self._failure = e

    def _require_readable(self) -> None:
        if self._failure is not None:
            failure = self._failure
            raise LogFileError(failure.kind, failure.path, failure.reason)
