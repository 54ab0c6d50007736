"""Read the files in which Kafka 2.8 to 3.7 kept what it had read of the metadata topic."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from services.interop.metadata_values import MetadataValue, MetadataValueError, decode_value

SNAPSHOT_FILE = "remote_log_snapshot"
COMMITTED_OFFSETS_FILE = "_rlmm_committed_offsets"

_VERSION = 0
_HEADER = struct.Struct(">h16siq")
"""Version, topic id, partition of the metadata topic, offset in it up to which it was read."""
_LENGTH = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A partition's snapshot file.

    Attributes:
        metadata_partition, metadata_offset: up to where the metadata topic had been read.
        values: of the segments.
    """

    topic_id: UUID
    metadata_partition: int
    metadata_offset: int
    values: tuple[MetadataValue, ...]


def read_snapshot_file(data: bytes) -> SnapshotFile:
    """Read a file remote_log_snapshot, whole.

    Raises:
        MetadataValueError: it is damaged, or of another version.
    """
    if len(data) < _HEADER.size:
        raise MetadataValueError(f"its header has {_HEADER.size} bytes, the file {len(data)}")
    version, topic_id, partition, offset = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise MetadataValueError(f"version {version} is not known", is_unknown=True)
    values = tuple(_entries(data))
    return SnapshotFile(UUID(bytes=topic_id), partition, offset, values)


def _entries(data: bytes) -> Iterator[MetadataValue]:
    position = _HEADER.size
    while position < len(data):
        begin = position + _LENGTH.size
        size = _LENGTH.unpack_from(data, position)[0] if begin <= len(data) else -1
        if not 0 <= size <= len(data) - begin:
            raise MetadataValueError(f"byte {position}: an entry is not whole")
        yield _entry(data[begin : begin + size], begin)
        position = begin + size


def _entry(data: bytes, position: int) -> MetadataValue:
    try:
        return decode_value(data)
    except MetadataValueError as e:
        raise MetadataValueError(f"byte {position}: {e}", e.is_unknown) from e


def read_committed_offsets(text: str) -> dict[int, int]:
    """Read a file _rlmm_committed_offsets: the offset by partition of the metadata topic.

    Raises:
        MetadataValueError: it is damaged, or of another version.
    """
    first, *lines = text.splitlines() or [""]
    if first.strip() != str(_VERSION):
        raise MetadataValueError(f"line 1: version {first[:20]!r} is not known", is_unknown=True)
    offsets: dict[int, int] = {}
    for number, line in enumerate(lines, 2):
        try:
            partition, offset = map(int, line.split())
        except ValueError as e:
            raise MetadataValueError(f"line {number}: not PARTITION OFFSET: {line[:80]!r}") from e
        offsets[partition] = offset
    return offsets
