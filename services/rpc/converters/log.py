"""Convert the messages of remote_log_manager.proto."""

from collections.abc import Iterable, Iterator

from services.api.errors import InvalidRequestError, RetriableRemoteStorageError
from services.api.lineage import EpochEnd
from services.api.offset_queries import (
    EpochAnswer,
    EpochQuery,
    FoundOffset,
    OffsetQueries,
    RaisedLogStart,
    RecordsToDelete,
)
from services.api.remote_log_manager import (
    AbortedTransaction,
    CopyLag,
    DescribePage,
    FetchPart,
    FetchRequest,
    FetchRole,
    IsolationLevel,
    LeadershipDelta,
    PartitionStops,
)
from services.api.replicas import AuxStateQuery, RemoteLogAuxState
from services.rpc.converters.fields import converters
from services.rpc.converters.shared import (
    fetch_error,
    lineage_from_proto,
    lineage_to_proto,
    record_source,
    segment_id_from_proto,
    segment_id_to_proto,
    topic_id_partition_from_proto,
    topic_id_partition_to_proto,
)
from tieredstorage.v1 import remote_log_manager_pb2 as pb

SNAPSHOT_CHUNK_BYTES = 256 * 1024

fetch_request_to_proto, fetch_request_from_proto = converters(
    FetchRequest,
    pb.FetchRequest,
    unset={"role": FetchRole.CONSUMER, "isolation_level": IsolationLevel.READ_UNCOMMITTED},
)
_epoch_end_to_proto, _epoch_end_from_proto = converters(EpochEnd, pb.EpochEnd)
_aborted_to_proto, _aborted_from_proto = converters(AbortedTransaction, pb.AbortedTransaction)
describe_page_to_proto, describe_page_from_proto = converters(
    DescribePage, pb.DescribePartitionsResponse
)
copy_lag_to_proto, copy_lag_from_proto = converters(CopyLag, pb.GetCopyLagResponse)
_delta_to_proto, delta_from_proto = converters(LeadershipDelta, pb.OnLeadershipChangeRequest)
stops_to_proto, stops_from_proto = converters(PartitionStops, pb.StopPartitionsRequest)
offset_queries_to_proto, offset_queries_from_proto = converters(
    OffsetQueries, pb.ListOffsetsRequest, unset={"isolation_level": IsolationLevel.READ_UNCOMMITTED}
)
found_offset_to_proto, found_offset_from_proto = converters(FoundOffset, pb.FoundOffset)
epoch_query_to_proto, epoch_query_from_proto = converters(EpochQuery, pb.EpochQuery)
epoch_answer_to_proto, epoch_answer_from_proto = converters(EpochAnswer, pb.EpochAnswer)
deletion_to_proto, deletion_from_proto = converters(RecordsToDelete, pb.RecordsToDelete)
raised_to_proto, raised_from_proto = converters(RaisedLogStart, pb.RaisedLogStart)
aux_state_query_to_proto, aux_state_query_from_proto = converters(
    AuxStateQuery, pb.BuildRemoteLogAuxStateRequest
)


def fetch_part_to_proto(part: FetchPart, *, with_records: bool = True) -> pb.FetchResponse:
    end = part.diverging_epoch
    message = pb.FetchResponse(
        topic_id_partition=topic_id_partition_to_proto(part.topic_id_partition),
        error=fetch_error.to_proto(part.error),
        error_message=part.error_message,
        high_watermark=part.high_watermark,
        last_stable_offset=part.last_stable_offset,
        log_start_offset=part.log_start_offset,
        record_batches=part.record_batches if with_records else b"",
        aborted_transactions=map(_aborted_to_proto, part.aborted_transactions),
        diverging_epoch=None if end is None else _epoch_end_to_proto(end),
        throttle_time_ms=part.throttle_time_ms,
        metadata_age_ms=part.metadata_age_ms,
    )
    if part.source is not None:
        message.source = record_source.to_proto(part.source)
    return message


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
        aborted_transactions=tuple(map(_aborted_from_proto, message.aborted_transactions)),
        diverging_epoch=_epoch_end_from_proto(end) if diverges else None,
        throttle_time_ms=message.throttle_time_ms,
        metadata_age_ms=message.metadata_age_ms if message.HasField("metadata_age_ms") else None,
    )


def delta_to_proto(delta: LeadershipDelta) -> pb.OnLeadershipChangeRequest:
    """Write role changes.

    Raises:
        InvalidRequestError: if a change has no leader epoch, which the message requires.
    """
    if any(change.leader_epoch is None for change in delta.changes):
        raise InvalidRequestError("changes.leader_epoch: must be set")
    return _delta_to_proto(delta)


def aux_state_to_proto(state: RemoteLogAuxState) -> Iterator[pb.BuildRemoteLogAuxStateResponse]:
    """Yield the header, then the snapshot in chunks."""
    header = pb.RemoteLogAuxStateHeader(
        next_offset=state.next_offset,
        log_start_offset=state.log_start_offset,
        leader_epochs=lineage_to_proto(state.lineage),
        producer_snapshot_bytes=len(state.producer_snapshot),
        remote_log_segment_id=segment_id_to_proto(state.segment_id),
    )
    yield pb.BuildRemoteLogAuxStateResponse(header=header)
    for at in range(0, len(state.producer_snapshot), SNAPSHOT_CHUNK_BYTES):
        chunk = state.producer_snapshot[at : at + SNAPSHOT_CHUNK_BYTES]
        yield pb.BuildRemoteLogAuxStateResponse(producer_snapshot=chunk)


def aux_state_from_proto(
    messages: Iterable[pb.BuildRemoteLogAuxStateResponse],
) -> RemoteLogAuxState:
    """Join the parts.

    Raises:
        RetriableRemoteStorageError: if the stream is not a header and a snapshot of its size.
    """
    header, pieces, size_bytes = pb.RemoteLogAuxStateHeader(), [], 0
    for message in messages:
        if message.HasField("header"):
            header = message.header
        else:
            pieces.append(message.producer_snapshot)
            size_bytes += len(message.producer_snapshot)
        if size_bytes > header.producer_snapshot_bytes:
            break
    if not header.next_offset or size_bytes != header.producer_snapshot_bytes:
        raise RetriableRemoteStorageError(
            f"the answer has {size_bytes} bytes of a producer snapshot of "
            f"{header.producer_snapshot_bytes}; retry"
        )
    return RemoteLogAuxState(
        header.next_offset,
        header.log_start_offset,
        lineage_from_proto(header.leader_epochs, "leader_epochs"),
        b"".join(pieces),
        segment_id_from_proto(header.remote_log_segment_id),
    )
