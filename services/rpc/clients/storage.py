"""RemoteStorageManager over gRPC."""

from collections.abc import Iterator, Sequence

import grpc

from services.api.errors import RemoteStorageError
from services.api.remote_storage_manager import (
    IndexType,
    LogSegmentData,
    RemoteStorageManager,
)
from services.api.segments import RemoteLogSegmentMetadata
from services.rpc.clients.calls import call_once, call_stream
from services.rpc.clients.sources import Source
from services.rpc.converters.enums import index_type as index_types
from services.rpc.converters.shared import metadata_to_proto
from services.rpc.converters.storage import copy_to_proto
from services.rpc.statuses import outcome_of
from tieredstorage.v1 import remote_storage_manager_pb2 as pb
from tieredstorage.v1 import remote_storage_manager_pb2_grpc as pb_grpc

# A copy or a fetch that is slower than this for its whole length has stopped making progress.
STREAM_TIMEOUT_S = 60.0
SLOWEST_BYTES_PER_S = 1024 * 1024


class RemoteStorageManagerClient:
    """Satisfies services.api.remote_storage_manager.RemoteStorageManager; thread-safe."""

    def __init__(
        self, channel: grpc.Channel, peer: str, stream_timeout_s: float = STREAM_TIMEOUT_S
    ) -> None:
        """`stream_timeout_s` is what a stream may take besides the time for its bytes."""
        self._stub = pb_grpc.RemoteStorageManagerStub(channel)
        self._peer = f"rsm at {peer}"
        self._stream_timeout_s = stream_timeout_s

    def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        source = Source(data.chunks)
        messages = copy_to_proto(metadata, LogSegmentData(data.files, source))
        timeout_s = self._timeout_s(sum(file.size_bytes for file in data.files))
        try:
            reply = call_once(self._stub.CopyLogSegmentData, messages, self._peer, timeout_s)
        except RemoteStorageError as e:
            if source.error is not None:
                # The caller's own source failed; gRPC only says that the stream was cancelled.
                raise source.error from e
            raise
        return reply.custom_metadata if reply.HasField("custom_metadata") else None

    def fetch_log_segment(
        self,
        metadata: RemoteLogSegmentMetadata,
        start_position: int,
        end_position: int | None = None,
    ) -> Iterator[bytes]:
        request = pb.FetchLogSegmentRequest(
            metadata=metadata_to_proto(metadata),
            start_position=start_position,
            end_position=end_position,
        )
        timeout_s = self._timeout_s(max(metadata.segment_size_in_bytes, 0))
        for response in call_stream(self._stub.FetchLogSegment, request, self._peer, timeout_s):
            yield response.data

    def fetch_index(
        self, metadata: RemoteLogSegmentMetadata, index_type: IndexType
    ) -> Iterator[bytes]:
        request = pb.FetchIndexRequest(
            metadata=metadata_to_proto(metadata), index_type=index_types.to_proto(index_type)
        )
        for response in call_stream(self._stub.FetchIndex, request, self._peer, self._timeout_s()):
            yield response.data

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        request = pb.DeleteLogSegmentDataRequest(metadata=metadata_to_proto(metadata))
        call_once(self._stub.DeleteLogSegmentData, request, self._peer)

    def delete_log_segment_data_batch(
        self, metadatas: Sequence[RemoteLogSegmentMetadata]
    ) -> list[RemoteStorageError | None]:
        request = pb.DeleteLogSegmentDataBatchRequest(
            metadatas=[metadata_to_proto(metadata) for metadata in metadatas]
        )
        reply = call_once(self._stub.DeleteLogSegmentDataBatch, request, self._peer)
        return [outcome_of(status) for status in reply.outcomes]

    def _timeout_s(self, size_bytes: int = 0) -> float:
        return self._stream_timeout_s + size_bytes / SLOWEST_BYTES_PER_S


def _conforms(client: RemoteStorageManagerClient) -> RemoteStorageManager:
    return client
