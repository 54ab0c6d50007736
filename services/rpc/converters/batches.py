"""Batches of additions and look-ups, and lists of ids, remote_log_metadata_manager.proto."""

from collections.abc import Sequence
from uuid import UUID

from services.api.calls import AtRevision
from services.api.errors import RemoteStorageError
from services.api.ids import TopicIdPartition, uuid_from_text
from services.api.segment_batches import AddOutcome, LookupOutcome, SegmentAddition, SegmentLookup
from services.api.validation import within
from services.rpc.converters.shared import (
    context_from_proto,
    context_to_proto,
    items_from_proto,
    metadata_from_proto,
    metadata_to_proto,
    outcome_from_proto,
    outcome_to_proto,
    require_set,
    topic_id_partition_from_proto,
    topic_id_partition_to_proto,
    write_metadata,
)
from services.rpc.statuses import error_of, status_of
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb
from tieredstorage.v1 import remote_log_segment_pb2 as segment_pb


def addition_to_proto(item: SegmentAddition) -> pb.AddRemoteLogSegmentMetadataRequest:
    return pb.AddRemoteLogSegmentMetadataRequest(
        metadata=metadata_to_proto(item.metadata),
        context=context_to_proto(item.context),
        lease_ms=item.lease_ms,
    )


def additions_from_proto(
    messages: Sequence[pb.AddRemoteLogSegmentMetadataRequest],
) -> tuple[SegmentAddition, ...]:
    return items_from_proto(messages, "adds", addition_from_proto)


def addition_from_proto(message: pb.AddRemoteLogSegmentMetadataRequest) -> SegmentAddition:
    require_set(message, "metadata")
    with within("metadata"):
        metadata = metadata_from_proto(message.metadata)
    with within("context"):
        context = context_from_proto(message.context)
    lease_ms = message.lease_ms if message.HasField("lease_ms") else None
    return SegmentAddition(metadata, context, lease_ms)


def add_outcome_to_proto(outcome: AddOutcome) -> pb.AddOutcome:
    if isinstance(outcome, RemoteStorageError):
        return pb.AddOutcome(error=status_of(outcome))
    return pb.AddOutcome(result=outcome_to_proto(outcome))


def add_outcome_from_proto(message: pb.AddOutcome) -> AddOutcome:
    if message.HasField("result"):
        return outcome_from_proto(message.result)
    return error_of(message.error)


def lookup_to_proto(lookup: SegmentLookup) -> pb.GetRemoteLogSegmentMetadataRequest:
    return pb.GetRemoteLogSegmentMetadataRequest(
        topic_id_partition=topic_id_partition_to_proto(lookup.topic_id_partition),
        epoch_for_offset=lookup.epoch_for_offset,
        offset=lookup.offset,
    )


def lookups_from_proto(
    messages: Sequence[pb.GetRemoteLogSegmentMetadataRequest],
) -> tuple[SegmentLookup, ...]:
    return items_from_proto(messages, "lookups", lookup_from_proto)


def lookup_from_proto(message: pb.GetRemoteLogSegmentMetadataRequest) -> SegmentLookup:
    require_set(message, "topic_id_partition")
    with within("topic_id_partition"):
        tp = topic_id_partition_from_proto(message.topic_id_partition)
    return SegmentLookup(tp, message.epoch_for_offset, message.offset)


def lookup_outcomes_to_proto(
    outcomes: Sequence[LookupOutcome],
) -> pb.GetRemoteLogSegmentMetadataBatchResponse:
    response = pb.GetRemoteLogSegmentMetadataBatchResponse()
    for outcome in outcomes:
        _write_lookup_outcome(outcome, response.outcomes.add())
    return response


def _write_lookup_outcome(outcome: LookupOutcome, message: pb.LookupOutcome) -> None:
    """In place, as write_metadata."""
    if isinstance(outcome, RemoteStorageError):
        message.error.CopyFrom(status_of(outcome))
        return
    message.result.revision = outcome.revision
    if outcome.value is not None:
        write_metadata(outcome.value, message.result.metadata)


def lookup_outcome_from_proto(message: pb.LookupOutcome) -> LookupOutcome:
    if not message.HasField("result"):
        return error_of(message.error)
    result = message.result
    found = metadata_from_proto(result.metadata) if result.HasField("metadata") else None
    return AtRevision(found, result.revision)


def ids_from_proto(ids: Sequence[str]) -> list[UUID]:
    return [uuid_from_text(id, f"ids[{index}]") for index, id in enumerate(ids)]


def indexed_partitions_from_proto(
    messages: Sequence[segment_pb.TopicIdPartition], field: str
) -> tuple[TopicIdPartition, ...]:
    return items_from_proto(messages, field, topic_id_partition_from_proto)
