"""remote_log_metadata_manager.proto."""

from collections.abc import Sequence

from services.api.ids import TopicIdPartition
from services.api.partition_changes import PartitionLeadership
from services.api.partition_queries import PartitionPage, PartitionSummary
from services.api.segment_queries import SegmentPage
from services.api.validation import require, within
from services.rpc.converters.enums import partition_delete_state
from services.rpc.converters.shared import (
    items_from_proto,
    metadata_from_proto,
    metadata_to_proto,
    require_set,
    topic_id_partition_from_proto,
    topic_id_partition_to_proto,
)
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb
from tieredstorage.v1 import remote_log_segment_pb2 as segment_pb

MAX_PARTITIONS_PER_CALL = 10_000


def segment_page_to_proto(page: SegmentPage) -> pb.ListRemoteLogSegmentsResponse:
    return pb.ListRemoteLogSegmentsResponse(
        segments=[metadata_to_proto(segment) for segment in page.segments],
        next_page_token=page.next_page_token,
        revision=page.revision,
        not_modified=page.not_modified,
        log_start_offset=page.log_start_offset,
    )


def segment_page_from_proto(message: pb.ListRemoteLogSegmentsResponse) -> SegmentPage:
    return SegmentPage(
        segments=tuple(metadata_from_proto(segment) for segment in message.segments),
        next_page_token=message.next_page_token,
        revision=message.revision,
        not_modified=message.not_modified,
        log_start_offset=message.log_start_offset,
    )


def leadership_to_proto(leadership: PartitionLeadership) -> pb.PartitionLeadership:
    return pb.PartitionLeadership(
        topic_id_partition=topic_id_partition_to_proto(leadership.topic_id_partition),
        leader_epoch=leadership.leader_epoch,
    )


def leaderships_from_proto(
    messages: Sequence[pb.PartitionLeadership], field: str
) -> list[PartitionLeadership]:
    _require_bounded(messages, field)
    return list(items_from_proto(messages, field, _leadership_from_proto))


def partitions_from_proto(
    messages: Sequence[segment_pb.TopicIdPartition], field: str
) -> list[TopicIdPartition]:
    _require_bounded(messages, field)
    return list(items_from_proto(messages, field, topic_id_partition_from_proto))


def _require_bounded(messages: Sequence[object], field: str) -> None:
    require(
        len(messages) <= MAX_PARTITIONS_PER_CALL,
        field,
        f"must be at most {MAX_PARTITIONS_PER_CALL}, are {len(messages)}",
    )


def _leadership_from_proto(message: pb.PartitionLeadership) -> PartitionLeadership:
    require_set(message, "topic_id_partition")
    with within("topic_id_partition"):
        tp = topic_id_partition_from_proto(message.topic_id_partition)
    return PartitionLeadership(
        tp, message.leader_epoch if message.HasField("leader_epoch") else None
    )


def partition_page_to_proto(page: PartitionPage) -> pb.ListPartitionsResponse:
    return pb.ListPartitionsResponse(
        partitions=[_summary_to_proto(summary) for summary in page.partitions],
        next_page_token=page.next_page_token,
    )


def partition_page_from_proto(message: pb.ListPartitionsResponse) -> PartitionPage:
    return PartitionPage(
        partitions=tuple(_summary_from_proto(summary) for summary in message.partitions),
        next_page_token=message.next_page_token,
    )


def _summary_to_proto(summary: PartitionSummary) -> pb.PartitionSummary:
    message = pb.PartitionSummary(
        topic_id_partition=topic_id_partition_to_proto(summary.topic_id_partition),
        revision=summary.revision,
        marked_at_ms=summary.marked_at_ms,
        read_at_ms=summary.read_at_ms,
        cluster_id=summary.cluster_id,
        known_since_ms=summary.known_since_ms,
    )
    if summary.delete_state is not None:
        message.delete_state = partition_delete_state.to_proto(summary.delete_state)
    return message


def _summary_from_proto(message: pb.PartitionSummary) -> PartitionSummary:
    deleting = (
        message.delete_state
        != segment_pb.RemotePartitionDeleteState.REMOTE_PARTITION_DELETE_STATE_UNSPECIFIED
    )
    return PartitionSummary(
        topic_id_partition=topic_id_partition_from_proto(message.topic_id_partition),
        delete_state=(
            partition_delete_state.from_proto(message.delete_state, "delete_state")
            if deleting
            else None
        ),
        revision=message.revision,
        marked_at_ms=message.marked_at_ms if message.HasField("marked_at_ms") else None,
        read_at_ms=message.read_at_ms,
        cluster_id=message.cluster_id if message.HasField("cluster_id") else None,
        known_since_ms=message.known_since_ms,
    )
