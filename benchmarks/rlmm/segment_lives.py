"""Provide whole lives of segments: each transition of their states, one after another."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from uuid import uuid4

from benchmarks.rlmm.histories import (
    BROKER_ID,
    CUSTOM_METADATA,
    EPOCHS,
    OFFSETS_PER_SEGMENT,
    SIZE_BYTES,
    Layout,
    PartitionHistory,
)
from services.api.ids import RemoteLogSegmentId
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    segment_leader_epochs,
)
from services.common.client_security import PLAINTEXT
from services.rpc.client.channel import open_channel
from services.rpc.converters.shared import metadata_to_proto, update_to_proto
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb
from tieredstorage.v1 import remote_log_metadata_manager_pb2_grpc as pb_grpc

UPDATES = (
    RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
    RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
    RemoteLogSegmentState.DELETE_SEGMENT_FINISHED,
)


@dataclass(frozen=True)
class SegmentLives:
    """A Workload: each segment is added, finished, marked and deleted, one call each.

    Each client has its share of the partitions, and continues their logs in turn; or all clients
    share the first partition, and each continues its log with every so many-th segment.
    """

    address: str
    layout: Layout
    clients: int
    in_one_partition: bool = False

    def caller(self, number: int) -> Callable[[], int]:
        channel = open_channel(self.address, PLAINTEXT)
        calls = self._calls(pb_grpc.RemoteLogMetadataManagerStub(channel), number)

        def once() -> int:
            return next(calls)

        return once

    def _calls(self, stub: pb_grpc.RemoteLogMetadataManagerStub, number: int) -> Iterator[int]:
        if self.in_one_partition:
            logs = [_Log(self.layout.partition_histories()[0], number, self.clients)]
        else:
            logs = _logs(self.layout, number, self.clients)
        while True:
            for log in logs:
                metadata = log.next_segment()
                _require_applied(stub.AddRemoteLogSegmentMetadata(_addition(metadata)).outcome)
                yield 1
                for state in UPDATES:
                    request = _update(metadata, state)
                    _require_applied(stub.UpdateRemoteLogSegmentMetadata(request).outcome)
                    yield 1


@dataclass(frozen=True)
class SegmentLivesInBatches:
    """A Workload: the same in batches, each over as many partitions as it has segments."""

    address: str
    layout: Layout
    clients: int
    batch: int

    def caller(self, number: int) -> Callable[[], int]:
        channel = open_channel(self.address, PLAINTEXT)
        calls = self._calls(pb_grpc.RemoteLogMetadataManagerStub(channel), number)

        def once() -> int:
            return next(calls)

        return once

    def _calls(self, stub: pb_grpc.RemoteLogMetadataManagerStub, number: int) -> Iterator[int]:
        logs = _logs(self.layout, number, self.clients)[: self.batch]
        while True:
            segments = [log.next_segment() for log in logs]
            adds = pb.AddRemoteLogSegmentMetadataBatchRequest(adds=map(_addition, segments))
            for added in stub.AddRemoteLogSegmentMetadataBatch(adds).outcomes:
                _require_applied(added.result, added)
            yield len(segments)
            for state in UPDATES:
                updates = pb.UpdateRemoteLogSegmentMetadataBatchRequest(
                    updates=[_update(segment, state) for segment in segments]
                )
                for updated in stub.UpdateRemoteLogSegmentMetadataBatch(updates).outcomes:
                    _require_applied(updated.result, updated)
                yield len(segments)


class _Log:
    """A partition whose log continues after its history, in the last leader epoch.

    If several clients share it, each has its own of every `clients` segments.
    """

    def __init__(self, history: PartitionHistory, client: int = 0, clients: int = 1) -> None:
        self._history = history
        self._clients = clients
        self._next_offset = history.end_offset + 1 + client * OFFSETS_PER_SEGMENT

    def next_segment(self) -> RemoteLogSegmentMetadata:
        start = self._next_offset
        self._next_offset += self._clients * OFFSETS_PER_SEGMENT
        return RemoteLogSegmentMetadata(
            remote_log_segment_id=RemoteLogSegmentId(self._history.topic_id_partition, uuid4()),
            start_offset=start,
            end_offset=start + OFFSETS_PER_SEGMENT - 1,
            max_timestamp_ms=start,
            broker_id=BROKER_ID,
            event_timestamp_ms=start,
            segment_leader_epochs=segment_leader_epochs([(EPOCHS - 1, start)]),
            segment_size_in_bytes=SIZE_BYTES,
            txn_idx_empty=True,
            broker_leader_epoch=EPOCHS - 1,
        )


def _logs(layout: Layout, number: int, clients: int) -> list[_Log]:
    return [_Log(history) for history in layout.partition_histories()[number::clients]]


def _addition(metadata: RemoteLogSegmentMetadata) -> pb.AddRemoteLogSegmentMetadataRequest:
    return pb.AddRemoteLogSegmentMetadataRequest(metadata=metadata_to_proto(metadata))


def _update(
    metadata: RemoteLogSegmentMetadata, state: RemoteLogSegmentState
) -> pb.UpdateRemoteLogSegmentMetadataRequest:
    finishes = state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    update = RemoteLogSegmentMetadataUpdate(
        remote_log_segment_id=metadata.remote_log_segment_id,
        event_timestamp_ms=metadata.event_timestamp_ms,
        state=state,
        broker_id=BROKER_ID,
        custom_metadata=CUSTOM_METADATA if finishes else None,
    )
    return pb.UpdateRemoteLogSegmentMetadataRequest(update=update_to_proto(update))


def _require_applied(outcome: object, answer: object = None) -> None:
    """Raise RuntimeError, with `answer` if the outcome is one of a batch, which may be an error."""
    if not getattr(outcome, "applied", False):
        raise RuntimeError(f"a transition was not applied: {answer or outcome}")
