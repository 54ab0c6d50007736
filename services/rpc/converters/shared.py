"""Convert the types that all services share (remote_log_segment.proto), and enums by name."""

from collections.abc import Callable, Iterable
from enum import Enum
from functools import lru_cache
from typing import Generic, Literal, Protocol, TypeVar

from google.protobuf.message import Message

from services.api.calls import MutationContext, MutationOutcome
from services.api.errors import InvalidRequestError
from services.api.ids import RemoteLogSegmentId, TopicIdPartition, uuid_from_text, uuid_to_text
from services.api.partitions import (
    AnomalyKind,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    VerificationKind,
)
from services.api.remote_log_manager import (
    FetchError,
    PartitionRole,
    ProblemKind,
    RecordSource,
    StopReason,
)
from services.api.remote_log_metadata_manager import SweepKind, SweepOutcome
from services.api.remote_storage_manager import IndexType, SegmentFile, SegmentObjectKind
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    SegmentLeaderEpoch,
)
from services.api.topic_config import RetentionOwner
from services.api.validation import require, within
from tieredstorage.v1 import remote_log_manager_pb2 as rlm_pb
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as rlmm_pb
from tieredstorage.v1 import remote_log_segment_pb2 as pb
from tieredstorage.v1 import remote_log_segment_pb2 as segment_pb
from tieredstorage.v1 import remote_storage_manager_pb2 as rsm_pb

E = TypeVar("E", bound=Enum)
V = TypeVar("V", bound=int)
V_co = TypeVar("V_co", bound=int, covariant=True)


class WireEnum(Protocol[V_co]):
    """A generated enum, whose numbers are looked up by name."""

    def Value(self, name: str) -> V_co: ...


class EnumConverter(Generic[E, V]):
    """Convert between an enum of services.api and the generated one, whose names have a prefix."""

    def __init__(self, ours: type[E], wire: WireEnum[V], prefix: str) -> None:
        self._to_wire = {member: wire.Value(prefix + member.name) for member in ours}
        self._from_wire = {number: member for member, number in self._to_wire.items()}

    def members(self) -> Iterable[E]:
        return self._to_wire.keys()

    def knows(self, number: V) -> bool:
        return number in self._from_wire

    def to_proto(self, member: E) -> V:
        return self._to_wire[member]

    def from_proto(self, number: V, field: str) -> E:
        """Raise InvalidRequestError for UNSPECIFIED and for numbers of a later release."""
        member = self._from_wire.get(number)
        if member is None:
            raise InvalidRequestError(f"{field}: must be set to a known value, is {number}")
        return member


segment_state = EnumConverter(
    RemoteLogSegmentState, segment_pb.RemoteLogSegmentState, "REMOTE_LOG_SEGMENT_STATE_"
)

partition_delete_state = EnumConverter(
    RemotePartitionDeleteState,
    segment_pb.RemotePartitionDeleteState,
    "REMOTE_PARTITION_DELETE_STATE_",
)

retention_owner = EnumConverter(RetentionOwner, segment_pb.RetentionOwner, "RETENTION_OWNER_")
anomaly_kind = EnumConverter(AnomalyKind, rlmm_pb.AnomalyKind, "ANOMALY_KIND_")
verification_kind = EnumConverter(VerificationKind, rlmm_pb.VerificationKind, "VERIFICATION_KIND_")
sweep_kind = EnumConverter(SweepKind, rlmm_pb.SweepKind, "SWEEP_KIND_")
sweep_outcome = EnumConverter(SweepOutcome, rlmm_pb.SweepOutcome, "SWEEP_OUTCOME_")
index_type = EnumConverter(IndexType, segment_pb.IndexType, "INDEX_TYPE_")
segment_file = EnumConverter(SegmentFile, rsm_pb.SegmentFile, "SEGMENT_FILE_")

segment_object_kind = EnumConverter(
    SegmentObjectKind, rsm_pb.SegmentObjectKind, "SEGMENT_OBJECT_KIND_"
)

fetch_error = EnumConverter(FetchError, rlm_pb.FetchError, "FETCH_ERROR_")
record_source = EnumConverter(RecordSource, rlm_pb.RecordSource, "RECORD_SOURCE_")
problem_kind = EnumConverter(ProblemKind, rlm_pb.ProblemKind, "PROBLEM_KIND_")
partition_role = EnumConverter(PartitionRole, rlm_pb.PartitionRole, "PARTITION_ROLE_")
stop_reason = EnumConverter(StopReason, rlm_pb.StopReason, "STOP_REASON_")
M = TypeVar("M")
T = TypeVar("T")


def items_from_proto(messages: Iterable[M], field: str, read: Callable[[M], T]) -> tuple[T, ...]:
    """Read each message; add its index in `field` to an InvalidRequestError."""
    items: list[T] = []
    try:
        for message in messages:
            items.append(read(message))
    except InvalidRequestError as e:
        raise type(e)(f"{field}[{len(items)}].{e}") from e
    return tuple(items)


def require_set(message: Message, field: str) -> None:
    """Raise InvalidRequestError if the message field `field` is absent."""
    require(message.HasField(field), field, "must be set")


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
    )


def leader_epochs_from_proto(
    messages: Iterable[pb.SegmentLeaderEpoch], field: str
) -> tuple[SegmentLeaderEpoch, ...]:
    return items_from_proto(
        messages, field, lambda each: SegmentLeaderEpoch(each.leader_epoch, each.start_offset)
    )


def update_to_proto(
    update: RemoteLogSegmentMetadataUpdate,
) -> pb.RemoteLogSegmentMetadataUpdate:
    return pb.RemoteLogSegmentMetadataUpdate(
        remote_log_segment_id=segment_id_to_proto(update.remote_log_segment_id),
        event_timestamp_ms=update.event_timestamp_ms,
        custom_metadata=update.custom_metadata,
        state=segment_state.to_proto(update.state),
        broker_id=update.broker_id,
    )


def update_from_proto(
    message: pb.RemoteLogSegmentMetadataUpdate,
) -> RemoteLogSegmentMetadataUpdate:
    require_set(message, "remote_log_segment_id")
    with within("remote_log_segment_id"):
        segment_id = segment_id_from_proto(message.remote_log_segment_id)
    return RemoteLogSegmentMetadataUpdate(
        remote_log_segment_id=segment_id,
        event_timestamp_ms=message.event_timestamp_ms,
        state=segment_state.from_proto(message.state, "state"),
        broker_id=message.broker_id,
        custom_metadata=message.custom_metadata if message.HasField("custom_metadata") else None,
    )


def partition_delete_to_proto(
    metadata: RemotePartitionDeleteMetadata,
) -> pb.RemotePartitionDeleteMetadata:
    return pb.RemotePartitionDeleteMetadata(
        topic_id_partition=topic_id_partition_to_proto(metadata.topic_id_partition),
        state=partition_delete_state.to_proto(metadata.state),
        event_timestamp_ms=metadata.event_timestamp_ms,
        broker_id=metadata.broker_id,
    )


def partition_delete_from_proto(
    message: pb.RemotePartitionDeleteMetadata,
) -> RemotePartitionDeleteMetadata:
    tp = partition_of(message)
    return RemotePartitionDeleteMetadata(
        topic_id_partition=tp,
        state=partition_delete_state.from_proto(message.state, "state"),
        event_timestamp_ms=message.event_timestamp_ms,
        broker_id=message.broker_id,
    )


def context_to_proto(context: MutationContext) -> pb.MutationContext:
    message = pb.MutationContext(
        request_id=context.request_id,
        reason=context.reason,
        rule_detail=context.rule_detail,
        plan_id=context.plan_id,
        broker_leader_epoch=context.broker_leader_epoch,
        expected_revision=context.expected_revision,
        expected_config_revision=context.expected_config_revision,
    )
    if context.retention_owner is not None:
        message.retention_owner = retention_owner.to_proto(context.retention_owner)
    return message


def context_from_proto(message: pb.MutationContext) -> MutationContext:
    """Read a context; an absent one is empty."""
    has_epoch = message.HasField("broker_leader_epoch")
    expects = message.HasField("expected_revision")
    expects_config = message.HasField("expected_config_revision")
    owner = message.retention_owner
    return MutationContext(
        request_id=message.request_id if message.HasField("request_id") else None,
        reason=message.reason,
        rule_detail=message.rule_detail if message.HasField("rule_detail") else None,
        plan_id=message.plan_id if message.HasField("plan_id") else None,
        broker_leader_epoch=message.broker_leader_epoch if has_epoch else None,
        expected_revision=message.expected_revision if expects else None,
        expected_config_revision=message.expected_config_revision if expects_config else None,
        retention_owner=retention_owner.from_proto(owner, "retention_owner") if owner else None,
    )


def outcome_to_proto(outcome: MutationOutcome) -> pb.MutationOutcome:
    return pb.MutationOutcome(applied=outcome.applied, revision=outcome.revision)


def outcome_from_proto(message: pb.MutationOutcome) -> MutationOutcome:
    return MutationOutcome(applied=message.applied, revision=message.revision)
