"""Compute the partitions, keys and printed lines of Kafka's topic __remote_log_metadata."""

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from kafka.partitioner import murmur2

from services.api.errors import InvalidRequestError
from services.api.ids import TopicIdPartition, uuid_from_text, uuid_to_text
from services.api.partitions import RemotePartitionDeleteMetadata
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentLeaderEpoch,
)
from services.interop.metadata_values import Metadata

METADATA_TOPIC = "__remote_log_metadata"

_INT64 = 2**64
_POSITIVE = 0x7FFFFFFF


def metadata_partition(tp: TopicIdPartition, partitions: int) -> int:
    """Return the partition of the metadata topic that has a partition's metadata.

    Args:
        partitions: of the metadata topic.

    Source: RemoteLogMetadataTopicPartitioner.
    """
    most, least = divmod(tp.topic_id.int, _INT64)
    number = 1
    for part in (_long_hash(least), _long_hash(most), tp.partition):
        number = 31 * number + part
    data = (number & 0xFFFFFFFF).to_bytes(4, "big")
    return (int(murmur2(data)) & _POSITIVE) % partitions


def _long_hash(value: int) -> int:
    return (value ^ value >> 32) & 0xFFFFFFFF


# --- keys -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MetadataKey:
    """The key of a record of the compacted topic (KIP-1266, not merged).

    Attributes:
        end_offset, broker_leader_epoch: both None in the key of a partition's deletion.
        topic: "" in the form of the proposal's text, which has no name.
    """

    topic_id: UUID
    partition: int
    end_offset: int | None = None
    broker_leader_epoch: int | None = None
    topic: str = ""


def encode_key(key: MetadataKey) -> bytes:
    """Write a key as TOPIC_ID:TOPIC:PARTITION, and :END_OFFSET:LEADER_EPOCH of a segment."""
    parts: list[object] = [uuid_to_text(key.topic_id), key.topic, key.partition]
    if key.end_offset is not None:
        parts += [key.end_offset, key.broker_leader_epoch]
    return ":".join(map(str, parts)).encode()


def decode_key(data: bytes) -> MetadataKey:
    """Read a key with or without the topic's name, which no colon can be in.

    Raises:
        InvalidRequestError: it has another form.
    """
    try:
        topic_id, *parts = data.decode("utf-8").split(":")
        # A name may look like a number: only the count of parts shows whether there is one.
        topic = parts.pop(0) if len(parts) in (2, 4) else ""
        partition, *segment = map(int, parts)
        end_offset, epoch = segment or (None, None)
    except ValueError as e:
        raise InvalidRequestError(f"key {data[:300]!r}: not a key of the metadata topic") from e
    return MetadataKey(uuid_from_text(topic_id, "key"), partition, end_offset, epoch, topic)


# --- the formatter's line -------------------------------------------------------------------------


def formatter_line(partition: int, offset: int, metadata: Metadata) -> str:
    """Return the line of Kafka's RemoteLogMetadataFormatter for a record, without its newline."""
    return f"partition: {partition}, offset: {offset}, value: {metadata_text(metadata)}"


def metadata_text(metadata: Metadata) -> str:
    """Return metadata as the `toString` of Kafka's class prints it."""
    match metadata:
        case RemoteLogSegmentMetadata():
            return _object(
                "RemoteLogSegmentMetadata",
                remoteLogSegmentId=_segment_id_text(metadata),
                startOffset=metadata.start_offset,
                endOffset=metadata.end_offset,
                brokerId=metadata.broker_id,
                maxTimestampMs=metadata.max_timestamp_ms,
                eventTimestampMs=metadata.event_timestamp_ms,
                segmentLeaderEpochs=_epochs_text(metadata.segment_leader_epochs),
                segmentSizeInBytes=metadata.segment_size_in_bytes,
                customMetadata=_custom_text(metadata.custom_metadata),
                state=metadata.state.value,
                txnIdxEmpty=str(metadata.txn_idx_empty).lower(),
            )
        case RemoteLogSegmentMetadataUpdate():
            return _object(
                "RemoteLogSegmentMetadataUpdate",
                remoteLogSegmentId=_segment_id_text(metadata),
                customMetadata=_custom_text(metadata.custom_metadata),
                state=metadata.state.value,
                eventTimestampMs=metadata.event_timestamp_ms,
                brokerId=metadata.broker_id,
            )
        case RemotePartitionDeleteMetadata():
            return _object(
                "RemotePartitionDeleteMetadata",
                topicPartition=metadata.topic_id_partition,
                state=metadata.state.value,
                eventTimestampMs=metadata.event_timestamp_ms,
                brokerId=metadata.broker_id,
            )
    return _object(
        "RemoteLogSegmentMetadataSnapshot",
        segmentId=uuid_to_text(metadata.segment_id),
        startOffset=metadata.start_offset,
        endOffset=metadata.end_offset,
        maxTimestampMs=metadata.max_timestamp_ms,
        segmentLeaderEpochs=_epochs_text(metadata.segment_leader_epochs),
        segmentSizeInBytes=metadata.segment_size_in_bytes,
        customMetadata=_custom_text(metadata.custom_metadata),
        state=metadata.state.value,
        txnIdxEmpty=str(metadata.txn_idx_empty).lower(),
    )


def _object(name: str, **fields: object) -> str:
    return f"{name}{{{', '.join(f'{field}={value}' for field, value in fields.items())}}}"


def _segment_id_text(metadata: RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate) -> str:
    segment_id = metadata.remote_log_segment_id
    return _object(
        "RemoteLogSegmentId",
        topicIdPartition=segment_id.topic_id_partition,
        id=uuid_to_text(segment_id.id),
    )


def _epochs_text(epochs: Iterable[SegmentLeaderEpoch]) -> str:
    return f"{{{', '.join(f'{each.leader_epoch}={each.start_offset}' for each in epochs)}}}"


def _custom_text(data: bytes | None) -> str:
    if data is None:
        return "Optional.empty"
    return f"Optional[CustomMetadata{{{len(data)} bytes}}]"
