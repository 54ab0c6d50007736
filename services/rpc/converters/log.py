"""Convert the messages of remote_log_manager.proto."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from services.api.errors import InvalidRequestError, RetriableRemoteStorageError
from services.api.local_retention import BrokerRetention, LocalRetentionChange
from services.api.offset_queries import OffsetQueries
from services.api.remote_log_manager import (
    ActivePasses,
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
    lineage_from_proto,
    lineage_to_proto,
    segment_id_from_proto,
    segment_id_to_proto,
)
from tieredstorage.v1 import remote_log_manager_pb2 as pb

SNAPSHOT_CHUNK_BYTES = 256 * 1024

fetch_request_to_proto, fetch_request_from_proto = converters(
    FetchRequest,
    pb.FetchRequest,
    unset={"role": FetchRole.CONSUMER, "isolation_level": IsolationLevel.READ_UNCOMMITTED},
)
_part_to_proto, _part_from_proto = converters(
    FetchPart, pb.FetchResponse, besides=["record_batches"], without=["pieces"]
)
converters(DescribePage, pb.DescribePartitionsResponse)
copy_lag_to_proto, copy_lag_from_proto = converters(CopyLag, pb.GetCopyLagResponse)
converters(ActivePasses, pb.DrainResponse)
_delta_to_proto, _ = converters(LeadershipDelta, pb.OnLeadershipChangeRequest)
converters(PartitionStops, pb.StopPartitionsRequest)
converters(
    OffsetQueries, pb.ListOffsetsRequest, unset={"isolation_level": IsolationLevel.READ_UNCOMMITTED}
)
converters(LocalRetentionChange, pb.SetLocalRetentionOwnerRequest)
converters(BrokerRetention, pb.SetLocalRetentionOwnerResponse)
aux_state_query_to_proto, aux_state_query_from_proto = converters(
    AuxStateQuery, pb.BuildRemoteLogAuxStateRequest
)


def fetch_part_to_proto(part: FetchPart, *, with_records: bool = True) -> pb.FetchResponse:
    message = _part_to_proto(part)
    if with_records:
        message.record_batches = part.record_batches
    return message


def fetch_part_from_proto(message: pb.FetchResponse, records: bytes | memoryview) -> FetchPart:
    """Convert a part whose records may have been read without protobuf."""
    part = _part_from_proto(message)
    return replace(part, pieces=(records,)) if records else part


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
