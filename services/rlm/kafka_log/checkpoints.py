"""The small text files of a log directory."""

import re
from pathlib import Path

from services.api.errors import InvalidRequestError
from services.api.ids import TopicIdPartition, uuid_from_text
from services.api.remote_log_manager import ProblemKind
from services.rlm.kafka_log.errors import LogFileError
from services.rlm.kafka_log.partition_dir import read_side_file

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
