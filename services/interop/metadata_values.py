"""Convert between metadata and the values of Kafka's topic __remote_log_metadata.

A value is a frame version, the api key of its message, the message's version and the message in
Kafka's flexible encoding (kafka-storage: RemoteLogMetadataSerde and its four message schemas).
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar
from uuid import UUID

from services.api.errors import InvalidRequestError
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    SegmentLeaderEpoch,
)
from services.interop.flexible import EncodingError, Reader, Writer

FRAME_VERSION = 1
SEGMENT, UPDATE, PARTITION_DELETE, SNAPSHOT = range(4)
KEYED_VERSION = 1
"""The version of messages that carry what their keys are made of (KIP-1266, not merged)."""

_SEGMENT_STATES = tuple(RemoteLogSegmentState)
_DELETE_STATES = tuple(RemotePartitionDeleteState)
"""Kafka's ids of states are their places in these."""

_TXN_INDEX_EMPTY = 0
_BROKER_LEADER_EPOCH, _END_OFFSET = 0, 1
_SEGMENT_LEADER_EPOCH = 1
"""The tag of a segment's broker leader epoch. The proposal names 0, which is TxnIndexEmpty in the
released schema; a value of four bytes under 0 is read as the epoch."""


S = TypeVar("S", bound=Enum)


class MetadataValueError(Exception):
    """A value is not the metadata of Kafka's topic.

    Attributes:
        is_unknown: it has a later frame, message or state; otherwise it is damaged.
    """

    def __init__(self, message: str, is_unknown: bool = False) -> None:
        super().__init__(message)
        self.is_unknown = is_unknown


@dataclass(frozen=True, slots=True)
class SegmentSnapshot:
    """A segment in a partition's snapshot, which has no partition in it (Kafka: api key 3)."""

    segment_id: UUID
    start_offset: int
    end_offset: int
    broker_id: int
    max_timestamp_ms: int
    event_timestamp_ms: int
    segment_leader_epochs: tuple[SegmentLeaderEpoch, ...]
    segment_size_in_bytes: int
    custom_metadata: bytes | None
    state: RemoteLogSegmentState
    txn_idx_empty: bool


Metadata = (
    RemoteLogSegmentMetadata
    | RemoteLogSegmentMetadataUpdate
    | RemotePartitionDeleteMetadata
    | SegmentSnapshot
)


@dataclass(frozen=True, slots=True)
class MetadataValue:
    """What a value says.

    Attributes:
        version: of the message; in KEYED_VERSION the next two are known.
        broker_leader_epoch: of the leader that wrote the event.
        end_offset: of the segment, or of the partition when its deletion began; None for a segment,
            which has its own.
    """

    metadata: Metadata
    version: int = 0
    broker_leader_epoch: int | None = None
    end_offset: int | None = None


def decode_value(data: bytes) -> MetadataValue:
    """Read the value of a record.

    Raises:
        MetadataValueError: it is damaged, of a later version, or metadata that cannot be.
    """
    reader = Reader(data)
    try:
        frame = reader.uvarint("the frame version")
        if frame != FRAME_VERSION:
            raise MetadataValueError(f"frame version {frame} is not known", is_unknown=True)
        api_key = reader.uvarint("the api key")
        version = reader.uvarint("the message version")
        if api_key > SNAPSHOT or version > (0 if api_key == SNAPSHOT else KEYED_VERSION):
            text = f"api key {api_key} in version {version} is not known"
            raise MetadataValueError(text, is_unknown=True)
        value = _READ[api_key](reader, version)
        reader.end("the message")
    except (EncodingError, InvalidRequestError) as e:
        raise MetadataValueError(str(e)) from e
    return value


def encode_value(value: MetadataValue) -> bytes:
    """Write the value of a record, as Kafka's own serializer does.

    In KEYED_VERSION `broker_leader_epoch`, and of all but segments `end_offset`, must be there.
    """
    writer, metadata = Writer(), value.metadata
    writer.uvarint(FRAME_VERSION)
    tags: dict[int, bytes] = {}
    if value.version == KEYED_VERSION and not isinstance(metadata, RemoteLogSegmentMetadata):
        tags = _keyed_tags(value)
    match metadata:
        case RemoteLogSegmentMetadata():
            _write_header(writer, SEGMENT, value.version)
            _write_segment_id(writer, metadata.remote_log_segment_id)
            _write_segment(writer, metadata)
            if metadata.txn_idx_empty:
                tags[_TXN_INDEX_EMPTY] = b"\x01"
            if value.version == KEYED_VERSION and value.broker_leader_epoch:
                tags[_SEGMENT_LEADER_EPOCH] = _int(value.broker_leader_epoch, 4)
        case SegmentSnapshot():
            _write_header(writer, SNAPSHOT, value.version)
            writer.uuid(metadata.segment_id)
            _write_segment(writer, metadata)
            tags = {_TXN_INDEX_EMPTY: b"\x01"} if metadata.txn_idx_empty else {}
        case RemoteLogSegmentMetadataUpdate():
            _write_header(writer, UPDATE, value.version)
            _write_segment_id(writer, metadata.remote_log_segment_id)
            writer.int32(metadata.broker_id)
            writer.int64(metadata.event_timestamp_ms)
            writer.nullable_bytes(metadata.custom_metadata)
            writer.int8(_SEGMENT_STATES.index(metadata.state))
        case RemotePartitionDeleteMetadata():
            _write_header(writer, PARTITION_DELETE, value.version)
            _write_partition(writer, metadata.topic_id_partition)
            writer.int32(metadata.broker_id)
            writer.int64(metadata.event_timestamp_ms)
            writer.int8(_DELETE_STATES.index(metadata.state))
    writer.tags(tags)
    return bytes(writer.data)


def _keyed_tags(value: MetadataValue) -> dict[int, bytes]:
    tags = {
        _BROKER_LEADER_EPOCH: (value.broker_leader_epoch, 4),
        _END_OFFSET: (value.end_offset, 8),
    }
    # As each tagged field, one that has its default, 0, is left out.
    return {tag: _int(number, size) for tag, (number, size) in tags.items() if number}


# --- what is written ------------------------------------------------------------------------------


def _write_header(writer: Writer, api_key: int, version: int) -> None:
    writer.uvarint(api_key)
    writer.uvarint(version)


def _write_partition(writer: Writer, tp: TopicIdPartition) -> None:
    writer.text(tp.topic)
    writer.uuid(tp.topic_id)
    writer.int32(tp.partition)
    writer.tags()


def _write_segment_id(writer: Writer, segment_id: RemoteLogSegmentId) -> None:
    _write_partition(writer, segment_id.topic_id_partition)
    writer.uuid(segment_id.id)
    writer.tags()


def _write_segment(writer: Writer, segment: RemoteLogSegmentMetadata | SegmentSnapshot) -> None:
    """Write what a segment and its snapshot have in common, which is all but their ids and tags."""
    writer.int64(segment.start_offset)
    writer.int64(segment.end_offset)
    writer.int32(segment.broker_id)
    writer.int64(segment.max_timestamp_ms)
    writer.int64(segment.event_timestamp_ms)
    writer.uvarint(len(segment.segment_leader_epochs) + 1)
    for each in segment.segment_leader_epochs:
        writer.int32(each.leader_epoch)
        writer.int64(each.start_offset)
        writer.tags()
    writer.int32(segment.segment_size_in_bytes)
    writer.nullable_bytes(segment.custom_metadata)
    writer.int8(_SEGMENT_STATES.index(segment.state))


def _int(value: int, size: int) -> bytes:
    return value.to_bytes(size, "big", signed=True)


# --- what is read ---------------------------------------------------------------------------------


def _read_segment(reader: Reader, version: int) -> MetadataValue:
    segment_id = _segment_id(reader)
    fields = _segment_fields(reader)
    tags = reader.tags("the segment")
    old = tags.get(_TXN_INDEX_EMPTY, b"\x00")
    epoch = None
    if version == KEYED_VERSION:
        is_epoch = len(old) == 4
        data = old if is_epoch else tags.get(_SEGMENT_LEADER_EPOCH)
        epoch = _tag(data, 4, "the broker leader epoch")
        old = b"\x00" if is_epoch else old
    is_empty = _tag(old, 1, "TxnIndexEmpty") != 0
    metadata = RemoteLogSegmentMetadata(
        segment_id, **fields, txn_idx_empty=is_empty, broker_leader_epoch=epoch
    )
    return MetadataValue(metadata, version, epoch)


def _read_snapshot(reader: Reader, version: int) -> MetadataValue:
    segment_id = reader.uuid("the segment id")
    fields = _segment_fields(reader)
    tags = reader.tags("the segment")
    is_empty = _tag(tags.get(_TXN_INDEX_EMPTY), 1, "TxnIndexEmpty") != 0
    return MetadataValue(SegmentSnapshot(segment_id, **fields, txn_idx_empty=is_empty), version)


def _read_update(reader: Reader, version: int) -> MetadataValue:
    segment_id = _segment_id(reader)
    broker_id, at_ms = reader.int32("the broker id"), reader.int64("the event's time")
    custom_metadata = reader.nullable_bytes("the custom metadata")
    state = _state(reader, _SEGMENT_STATES)
    metadata = RemoteLogSegmentMetadataUpdate(segment_id, at_ms, state, broker_id, custom_metadata)
    return _keyed(metadata, reader, version)


def _read_partition_delete(reader: Reader, version: int) -> MetadataValue:
    tp = _partition(reader)
    broker_id, at_ms = reader.int32("the broker id"), reader.int64("the event's time")
    state = _state(reader, _DELETE_STATES)
    return _keyed(RemotePartitionDeleteMetadata(tp, state, at_ms, broker_id), reader, version)


_READ = (_read_segment, _read_update, _read_partition_delete, _read_snapshot)
"""By api key."""


def _keyed(metadata: Metadata, reader: Reader, version: int) -> MetadataValue:
    tags = reader.tags("the message")
    if version < KEYED_VERSION:
        return MetadataValue(metadata, version)
    epoch = _tag(tags.get(_BROKER_LEADER_EPOCH), 4, "the broker leader epoch")
    end_offset = _tag(tags.get(_END_OFFSET), 8, "the end offset")
    return MetadataValue(metadata, version, epoch, end_offset)


def _tag(data: bytes | None, size: int, what: str) -> int:
    if data is None:
        return 0
    if len(data) != size:
        raise EncodingError(f"{what} has {size} bytes, its tag has {len(data)}")
    return int.from_bytes(data, "big", signed=True)


def _partition(reader: Reader) -> TopicIdPartition:
    topic = reader.text("the topic")
    topic_id, number = reader.uuid("the topic id"), reader.int32("the partition")
    reader.tags("the partition")
    return TopicIdPartition(topic_id, topic, number)


def _segment_id(reader: Reader) -> RemoteLogSegmentId:
    tp = _partition(reader)
    segment_id = RemoteLogSegmentId(tp, reader.uuid("the segment id"))
    reader.tags("the segment id")
    return segment_id


def _segment_fields(reader: Reader) -> dict[str, Any]:
    return {
        "start_offset": reader.int64("the start offset"),
        "end_offset": reader.int64("the end offset"),
        "broker_id": reader.int32("the broker id"),
        "max_timestamp_ms": reader.int64("the latest record's time"),
        "event_timestamp_ms": reader.int64("the event's time"),
        "segment_leader_epochs": _leader_epochs(reader),
        "segment_size_in_bytes": reader.int32("the segment's size"),
        "custom_metadata": reader.nullable_bytes("the custom metadata"),
        "state": _state(reader, _SEGMENT_STATES),
    }


def _leader_epochs(reader: Reader) -> tuple[SegmentLeaderEpoch, ...]:
    """Read the epochs, in any order: Kafka sorts them, and the last of equal ones counts."""

    def one() -> tuple[int, int]:
        pair = reader.int32("a leader epoch"), reader.int64("an epoch's start")
        reader.tags("a leader epoch")
        return pair

    epochs = dict(reader.array(one, "the leader epochs"))
    return tuple(SegmentLeaderEpoch(*each) for each in sorted(epochs.items()))


def _state(reader: Reader, states: tuple[S, ...]) -> S:
    number = reader.int8("the state")
    if not 0 <= number < len(states):
        raise MetadataValueError(f"state {number} is not known", is_unknown=True)
    return states[number]
