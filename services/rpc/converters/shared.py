"""Convert the types that all services share (remote_log_segment.proto), and enums by name."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Literal, Protocol

from services.api.calls import MutationContext, MutationOutcome
from services.api.endpoints import RlmEndpoint
from services.api.ids import RemoteLogSegmentId, TopicIdPartition, uuid_from_text, uuid_to_text
from services.api.lineage import Lineage
from services.api.operations import RunKind, RunOutcome
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.remote_storage_manager import IndexType, SegmentFile
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    SegmentLeaderEpoch,
)
from services.api.topic_config import RetentionOwner
from services.api.validation import require, within
from services.rpc.converters.fields import (
    EnumConverter,
    converters,
    items_from_proto,
    register,
    register_message,
    require_set,
)
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as rlmm_pb
from tieredstorage.v1 import remote_log_segment_pb2 as pb
from tieredstorage.v1 import remote_storage_manager_pb2 as rsm_pb

segment_state = EnumConverter(RemoteLogSegmentState, pb.RemoteLogSegmentState)
partition_delete_state = EnumConverter(RemotePartitionDeleteState, pb.RemotePartitionDeleteState)
retention_owner = EnumConverter(RetentionOwner, pb.RetentionOwner)
index_type = EnumConverter(IndexType, pb.IndexType)
run_kind = EnumConverter(RunKind, rlmm_pb.RunKind)
run_outcome = EnumConverter(RunOutcome, rlmm_pb.RunOutcome)
segment_file = EnumConverter(SegmentFile, rsm_pb.SegmentFile)

converters(RlmEndpoint, pb.RlmEndpoint)


# Batches and pages name the same few partitions again and again.
@lru_cache(maxsize=4096)
def topic_id_partition_to_proto(tp: TopicIdPartition) -> pb.TopicIdPartition:
    """Return a message that callers share and must copy before they change it."""
    return pb.TopicIdPartition(
        topic_id=uuid_to_text(tp.topic_id), topic=tp.topic, partition=tp.partition
    )


def topic_id_partition_from_proto(message: pb.TopicIdPartition) -> TopicIdPartition:
    return _topic_id_partition(message.topic_id, message.topic, message.partition)


@lru_cache(maxsize=4096)
def _topic_id_partition(topic_id: str, topic: str, partition: int) -> TopicIdPartition:
    return TopicIdPartition(uuid_from_text(topic_id, "topic_id"), topic, partition)


register_message(TopicIdPartition, topic_id_partition_to_proto, topic_id_partition_from_proto)


class _OfPartition(Protocol):
    """A message about one partition."""

    @property
    def topic_id_partition(self) -> pb.TopicIdPartition: ...

    def HasField(self, field_name: Literal["topic_id_partition"], /) -> bool: ...


def partition_of(message: _OfPartition) -> TopicIdPartition:
    """Read the partition that a message is about.

    Raises:
        InvalidRequestError: it is absent or not valid; names the field.
    """
    require(message.HasField("topic_id_partition"), "topic_id_partition", "must be set")
    with within("topic_id_partition"):
        return topic_id_partition_from_proto(message.topic_id_partition)


def segment_id_to_proto(segment_id: RemoteLogSegmentId) -> pb.RemoteLogSegmentId:
    return pb.RemoteLogSegmentId(
        topic_id_partition=topic_id_partition_to_proto(segment_id.topic_id_partition),
        id=uuid_to_text(segment_id.id),
    )


def segment_id_from_proto(message: pb.RemoteLogSegmentId) -> RemoteLogSegmentId:
    tp = partition_of(message)
    return RemoteLogSegmentId(tp, uuid_from_text(message.id, "id"))


register_message(RemoteLogSegmentId, segment_id_to_proto, segment_id_from_proto)


# By hand, because look-ups convert thousands: a message that is written in place is not copied.
def metadata_to_proto(metadata: RemoteLogSegmentMetadata) -> pb.RemoteLogSegmentMetadata:
    message = pb.RemoteLogSegmentMetadata()
    write_metadata(metadata, message)
    return message


def write_metadata(
    metadata: RemoteLogSegmentMetadata, message: pb.RemoteLogSegmentMetadata
) -> None:
    """Write metadata into an empty message within a larger one.

    A separate message would be copied into the larger one, which takes as long as making it.
    """
    segment_id = metadata.remote_log_segment_id
    tp = topic_id_partition_to_proto(segment_id.topic_id_partition)
    message.remote_log_segment_id.topic_id_partition.CopyFrom(tp)
    message.remote_log_segment_id.id = uuid_to_text(segment_id.id)
    message.start_offset = metadata.start_offset
    message.end_offset = metadata.end_offset
    message.max_timestamp_ms = metadata.max_timestamp_ms
    message.broker_id = metadata.broker_id
    if metadata.broker_leader_epoch is not None:
        message.broker_leader_epoch = metadata.broker_leader_epoch
    message.event_timestamp_ms = metadata.event_timestamp_ms
    for epoch in metadata.segment_leader_epochs:
        message.segment_leader_epochs.add(
            leader_epoch=epoch.leader_epoch, start_offset=epoch.start_offset
        )
    message.segment_size_in_bytes = metadata.segment_size_in_bytes
    if metadata.custom_metadata is not None:
        message.custom_metadata = metadata.custom_metadata
    message.state = segment_state.to_proto(metadata.state)
    message.txn_idx_empty = metadata.txn_idx_empty
    message.copy_leased = metadata.copy_leased
    if metadata.kept_until_ms is not None:
        message.kept_until_ms = metadata.kept_until_ms


def metadata_from_proto(message: pb.RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
    require_set(message, "remote_log_segment_id")
    with within("remote_log_segment_id"):
        segment_id = segment_id_from_proto(message.remote_log_segment_id)
    has_epoch = message.HasField("broker_leader_epoch")
    return RemoteLogSegmentMetadata(
        remote_log_segment_id=segment_id,
        start_offset=message.start_offset,
        end_offset=message.end_offset,
        max_timestamp_ms=message.max_timestamp_ms,
        broker_id=message.broker_id,
        event_timestamp_ms=message.event_timestamp_ms,
        segment_leader_epochs=leader_epochs_from_proto(
            message.segment_leader_epochs, "segment_leader_epochs"
        ),
        segment_size_in_bytes=message.segment_size_in_bytes,
        custom_metadata=message.custom_metadata if message.HasField("custom_metadata") else None,
        state=segment_state.from_proto(message.state, "state"),
        txn_idx_empty=message.txn_idx_empty,
        broker_leader_epoch=message.broker_leader_epoch if has_epoch else None,
        copy_leased=message.copy_leased,
        kept_until_ms=message.kept_until_ms if message.HasField("kept_until_ms") else None,
    )


register_message(RemoteLogSegmentMetadata, metadata_to_proto, metadata_from_proto)


def leader_epochs_from_proto(
    messages: Iterable[pb.SegmentLeaderEpoch], field: str
) -> tuple[SegmentLeaderEpoch, ...]:
    return items_from_proto(
        messages, field, lambda each: SegmentLeaderEpoch(each.leader_epoch, each.start_offset)
    )


def lineage_to_proto(lineage: Lineage) -> list[pb.SegmentLeaderEpoch]:
    return [
        pb.SegmentLeaderEpoch(leader_epoch=e.leader_epoch, start_offset=e.start_offset)
        for e in lineage.entries
    ]


def lineage_from_proto(messages: Iterable[pb.SegmentLeaderEpoch], field: str) -> Lineage:
    return Lineage(leader_epochs_from_proto(messages, field))


register(Lineage, lineage_to_proto, lineage_from_proto)

update_to_proto, update_from_proto = converters(
    RemoteLogSegmentMetadataUpdate, pb.RemoteLogSegmentMetadataUpdate
)
partition_delete_to_proto, partition_delete_from_proto = converters(
    RemotePartitionDeleteMetadata, pb.RemotePartitionDeleteMetadata
)
context_to_proto, context_from_proto = converters(MutationContext, pb.MutationContext)
outcome_to_proto, outcome_from_proto = converters(MutationOutcome, pb.MutationOutcome)
