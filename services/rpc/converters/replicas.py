"""Convert the messages of BuildRemoteLogAuxState."""

from collections.abc import Iterable, Iterator

from services.api.errors import RetriableRemoteStorageError
from services.api.lineage import Lineage
from services.api.replicas import AuxStateQuery, RemoteLogAuxState
from services.rpc.converters.shared import (
    leader_epochs_from_proto,
    partition_of,
    segment_id_from_proto,
    segment_id_to_proto,
    topic_id_partition_to_proto,
)
from tieredstorage.v1 import remote_log_manager_pb2 as pb
from tieredstorage.v1 import remote_log_segment_pb2 as segment_pb

SNAPSHOT_CHUNK_BYTES = 256 * 1024


def aux_state_query_to_proto(query: AuxStateQuery) -> pb.BuildRemoteLogAuxStateRequest:
    return pb.BuildRemoteLogAuxStateRequest(
        topic_id_partition=topic_id_partition_to_proto(query.topic_id_partition),
        offset=query.offset,
        leader_epoch=query.leader_epoch,
        current_leader_epoch=query.current_leader_epoch,
        max_wait_ms=query.max_wait_ms,
    )


def aux_state_query_from_proto(message: pb.BuildRemoteLogAuxStateRequest) -> AuxStateQuery:
    tp = partition_of(message)
    return AuxStateQuery(
        tp,
        message.offset,
        message.leader_epoch if message.HasField("leader_epoch") else None,
        message.current_leader_epoch if message.HasField("current_leader_epoch") else None,
        message.max_wait_ms,
    )


def aux_state_to_proto(state: RemoteLogAuxState) -> Iterator[pb.BuildRemoteLogAuxStateResponse]:
    """Yield the header, then the snapshot in chunks."""
    header = pb.RemoteLogAuxStateHeader(
        next_offset=state.next_offset,
        log_start_offset=state.log_start_offset,
        leader_epochs=[
            segment_pb.SegmentLeaderEpoch(leader_epoch=e.leader_epoch, start_offset=e.start_offset)
            for e in state.lineage.entries
        ],
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
        Lineage(leader_epochs_from_proto(header.leader_epochs, "leader_epochs")),
        b"".join(pieces),
        segment_id_from_proto(header.remote_log_segment_id),
    )
