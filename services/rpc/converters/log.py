"""Convert the messages of remote_log_manager.proto."""

from dataclasses import asdict

from services.api.errors import InvalidRequestError
from services.api.lineage import EpochEnd
from services.api.remote_log_manager import (
    AbortedTransaction,
    CopyLag,
    DescribePage,
    FetchPart,
    FetchPartition,
    FetchRequest,
    FetchRole,
    IsolationLevel,
    LeadershipChange,
    LeadershipDelta,
    PartitionDescription,
    PartitionStops,
    Problem,
    StopPartition,
)
from services.rpc.converters.shared import (
    EnumConverter,
    fetch_error,
    items_from_proto,
    partition_of,
    partition_role,
    problem_kind,
    record_source,
    stop_reason,
    topic_id_partition_from_proto,
    topic_id_partition_to_proto,
)
from tieredstorage.v1 import remote_log_manager_pb2 as pb

_fetch_role = EnumConverter(FetchRole, pb.FetchRole, "FETCH_ROLE_")

isolation_level = EnumConverter(IsolationLevel, pb.IsolationLevel, "ISOLATION_LEVEL_")


def fetch_request_to_proto(request: FetchRequest) -> pb.FetchRequest:
    return pb.FetchRequest(
        partitions=[
            pb.FetchPartition(
                topic_id_partition=topic_id_partition_to_proto(p.topic_id_partition),
                fetch_offset=p.fetch_offset,
                max_bytes=p.max_bytes,
                current_leader_epoch=p.current_leader_epoch,
                last_fetched_epoch=p.last_fetched_epoch,
            )
            for p in request.partitions
        ],
        max_bytes=request.max_bytes,
        isolation_level=isolation_level.to_proto(request.isolation_level),
        max_wait_ms=request.max_wait_ms,
        min_bytes=request.min_bytes,
        role=_fetch_role.to_proto(request.role),
    )


def fetch_request_from_proto(message: pb.FetchRequest) -> FetchRequest:
    role = FetchRole.CONSUMER
    if message.role != pb.FETCH_ROLE_UNSPECIFIED:
        role = _fetch_role.from_proto(message.role, "role")
    partitions = items_from_proto(message.partitions, "partitions", _fetch_partition_from_proto)
    isolation = isolation_from_proto(message.isolation_level)
    return FetchRequest(
        partitions, message.max_bytes, isolation, message.max_wait_ms, message.min_bytes, role
    )


def isolation_from_proto(number: "pb.IsolationLevel.ValueType") -> IsolationLevel:
    """Read an isolation level; UNSPECIFIED means READ_UNCOMMITTED."""
    if number == pb.ISOLATION_LEVEL_UNSPECIFIED:
        return IsolationLevel.READ_UNCOMMITTED
    return isolation_level.from_proto(number, "isolation_level")


def _fetch_partition_from_proto(message: pb.FetchPartition) -> FetchPartition:
    tp = partition_of(message)
    return FetchPartition(
        tp,
        message.fetch_offset,
        message.max_bytes,
        message.current_leader_epoch if message.HasField("current_leader_epoch") else None,
        message.last_fetched_epoch if message.HasField("last_fetched_epoch") else None,
    )


def fetch_part_to_proto(part: FetchPart, *, with_records: bool = True) -> pb.FetchResponse:
    message = pb.FetchResponse(
        topic_id_partition=topic_id_partition_to_proto(part.topic_id_partition),
        error=fetch_error.to_proto(part.error),
        error_message=part.error_message,
        high_watermark=part.high_watermark,
        last_stable_offset=part.last_stable_offset,
        log_start_offset=part.log_start_offset,
        record_batches=part.record_batches if with_records else b"",
        aborted_transactions=[
            pb.AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
            for each in part.aborted_transactions
        ],
        diverging_epoch=epoch_end_to_proto(part.diverging_epoch),
        throttle_time_ms=part.throttle_time_ms,
        metadata_age_ms=part.metadata_age_ms,
    )
    if part.source is not None:
        message.source = record_source.to_proto(part.source)
    return message


def epoch_end_to_proto(end: EpochEnd | None) -> pb.EpochEnd | None:
    if end is None:
        return None
    return pb.EpochEnd(leader_epoch=end.leader_epoch, end_offset=end.end_offset)


def fetch_part_from_proto(message: pb.FetchResponse, records: bytes | memoryview) -> FetchPart:
    """Convert a part whose records may have been read without protobuf."""
    has_source = message.source != pb.RECORD_SOURCE_UNSPECIFIED
    diverges, end = message.HasField("diverging_epoch"), message.diverging_epoch
    return FetchPart(
        topic_id_partition=topic_id_partition_from_proto(message.topic_id_partition),
        error=fetch_error.from_proto(message.error, "error"),
        error_message=message.error_message,
        high_watermark=message.high_watermark,
        last_stable_offset=message.last_stable_offset,
        log_start_offset=message.log_start_offset,
        pieces=(records,) if records else (),
        source=record_source.from_proto(message.source, "source") if has_source else None,
        aborted_transactions=tuple(
            AbortedTransaction(each.first_offset, each.producer_id)
            for each in message.aborted_transactions
        ),
        diverging_epoch=EpochEnd(end.leader_epoch, end.end_offset) if diverges else None,
        throttle_time_ms=message.throttle_time_ms,
        metadata_age_ms=message.metadata_age_ms if message.HasField("metadata_age_ms") else None,
    )


def describe_page_to_proto(page: DescribePage) -> pb.DescribePartitionsResponse:
    return pb.DescribePartitionsResponse(
        partitions=[_description_to_proto(d) for d in page.partitions],
        next_page_token=page.next_page_token,
        log_dir_problems=[_problem_to_proto(p) for p in page.log_dir_problems],
    )


def describe_page_from_proto(message: pb.DescribePartitionsResponse) -> DescribePage:
    return DescribePage(
        partitions=tuple(_description_from_proto(d) for d in message.partitions),
        next_page_token=message.next_page_token,
        log_dir_problems=tuple(_problem_from_proto(p) for p in message.log_dir_problems),
    )


def _description_to_proto(d: PartitionDescription) -> pb.PartitionDescription:
    message = pb.PartitionDescription(
        topic_id_partition=topic_id_partition_to_proto(d.topic_id_partition),
        leader_id=d.leader_id,
        leader_epoch=d.leader_epoch,
        log_start_offset=d.log_start_offset,
        local_log_start_offset=d.local_log_start_offset,
        last_stable_offset=d.last_stable_offset,
        log_end_offset=d.log_end_offset,
        copied_through_offset=d.copied_through_offset,
        local_segments=d.local_segments,
        local_size_bytes=d.local_size_bytes,
        pending_segments=d.pending_segments,
        pending_size_bytes=d.pending_size_bytes,
        remote_segments=d.remote_segments,
        remote_size_bytes=d.remote_size_bytes,
        problems=[_problem_to_proto(p) for p in d.problems],
    )
    if d.role is not None:
        message.role = partition_role.to_proto(d.role)
    return message


def _description_from_proto(message: pb.PartitionDescription) -> PartitionDescription:
    has_role = message.role != pb.PARTITION_ROLE_UNSPECIFIED
    return PartitionDescription(
        topic_id_partition=topic_id_partition_from_proto(message.topic_id_partition),
        leader_id=message.leader_id,
        leader_epoch=message.leader_epoch,
        log_start_offset=message.log_start_offset,
        local_log_start_offset=message.local_log_start_offset,
        last_stable_offset=message.last_stable_offset,
        log_end_offset=message.log_end_offset,
        copied_through_offset=message.copied_through_offset,
        local_segments=message.local_segments,
        local_size_bytes=message.local_size_bytes,
        pending_segments=message.pending_segments,
        pending_size_bytes=message.pending_size_bytes,
        remote_segments=message.remote_segments,
        remote_size_bytes=message.remote_size_bytes,
        problems=tuple(_problem_from_proto(p) for p in message.problems),
        role=partition_role.from_proto(message.role, "role") if has_role else None,
    )


def _problem_to_proto(problem: Problem) -> pb.Problem:
    return pb.Problem(
        kind=problem_kind.to_proto(problem.kind),
        path=problem.path,
        message=problem.message,
        offset=problem.offset,
        held_segments=problem.held_segments,
    )


def _problem_from_proto(message: pb.Problem) -> Problem:
    return Problem(
        kind=problem_kind.from_proto(message.kind, "kind"),
        path=message.path,
        message=message.message,
        offset=message.offset if message.HasField("offset") else None,
        held_segments=message.held_segments,
    )


def copy_lag_to_proto(lag: CopyLag) -> pb.GetCopyLagResponse:
    return pb.GetCopyLagResponse(**asdict(lag))


def copy_lag_from_proto(message: pb.GetCopyLagResponse) -> CopyLag:
    has_oldest = message.HasField("oldest_timestamp_ms")
    has_used = message.HasField("local_retention_used")
    return CopyLag(
        broker_id=message.broker_id,
        partitions=message.partitions,
        lagging_partitions=message.lagging_partitions,
        held_back_partitions=message.held_back_partitions,
        uncopied_segments=message.uncopied_segments,
        uncopied_bytes=message.uncopied_bytes,
        oldest_timestamp_ms=message.oldest_timestamp_ms if has_oldest else None,
        local_retention_used=message.local_retention_used if has_used else None,
        drained=message.drained,
        unchecked_partitions=message.unchecked_partitions,
        lost_partitions=message.lost_partitions,
        earlier_histories=message.earlier_histories,
    )


def delta_to_proto(delta: LeadershipDelta) -> pb.OnLeadershipChangeRequest:
    """Write role changes.

    Raises:
        InvalidRequestError: if a change has no leader epoch, which the message requires.
    """
    return pb.OnLeadershipChangeRequest(changes=[_change_to_proto(c) for c in delta.changes])


def _change_to_proto(change: LeadershipChange) -> pb.LeadershipChange:
    if change.leader_epoch is None:
        raise InvalidRequestError("changes.leader_epoch: must be set")
    return pb.LeadershipChange(
        topic_id_partition=topic_id_partition_to_proto(change.topic_id_partition),
        leader_epoch=change.leader_epoch,
        role=partition_role.to_proto(change.role),
    )


def delta_from_proto(message: pb.OnLeadershipChangeRequest) -> LeadershipDelta:
    return LeadershipDelta(items_from_proto(message.changes, "changes", _change_from_proto))


def _change_from_proto(message: pb.LeadershipChange) -> LeadershipChange:
    tp = partition_of(message)
    role = partition_role.from_proto(message.role, "role")
    return LeadershipChange(tp, message.leader_epoch, role)


def stops_to_proto(stops: PartitionStops) -> pb.StopPartitionsRequest:
    return pb.StopPartitionsRequest(
        partitions=[
            pb.StopPartition(
                topic_id_partition=topic_id_partition_to_proto(stop.topic_id_partition),
                leader_epoch=stop.leader_epoch,
                reason=stop_reason.to_proto(stop.reason),
            )
            for stop in stops.partitions
        ]
    )


def stops_from_proto(message: pb.StopPartitionsRequest) -> PartitionStops:
    return PartitionStops(items_from_proto(message.partitions, "partitions", _stop_from_proto))


def _stop_from_proto(message: pb.StopPartition) -> StopPartition:
    tp = partition_of(message)
    leader_epoch = message.leader_epoch if message.HasField("leader_epoch") else None
    return StopPartition(tp, leader_epoch, stop_reason.from_proto(message.reason, "reason"))
