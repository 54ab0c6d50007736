"""Call RemoteStorageManager over gRPC."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.api.remote_storage_manager import (
    IndexType,
    LogSegmentData,
    RemoteStorageManager,
)
from services.api.segment_objects import (
    ObjectLocation,
    SegmentObjects,
)
from services.api.segments import RemoteLogSegmentMetadata
from services.rpc.client.calls import call_once, call_stream, call_with_stream
from services.rpc.client.channel import peer_of
from services.rpc.client.contract import ContractClient, unary
from services.rpc.converters import storage as convert
from services.rpc.converters.shared import index_type as index_types
from services.rpc.converters.shared import metadata_to_proto
from services.rpc.converters.storage import copy_to_proto
from services.rpc.statuses import outcome_of, was_ended_by_proxy
from services.rpc.wire import copying_method, fetching_method, request_to_wire
from tieredstorage.v1 import remote_storage_manager_pb2 as pb
from tieredstorage.v1 import remote_storage_manager_pb2_grpc as pb_grpc

# RSM may wait for a part buffer for 60 s before it takes the next message. After the last one it
# waits for the parts under way, completes the upload, and writes indexes and manifest.
COPY_TIMEOUT_S = 180.0
FETCH_TIMEOUT_S = 60.0


class RemoteStorageManagerClient(ContractClient):
    """Implement RemoteStorageManager by calls to a server. Thread-safe."""

    def __init__(
        self,
        channel: grpc.Channel,
        peer: str,
        *,
        copy_timeout_s: float = COPY_TIMEOUT_S,
        fetch_timeout_s: float = FETCH_TIMEOUT_S,
    ) -> None:
        """Set the timeouts of calls. Neither bounds a call as a whole.

        Args:
            copy_timeout_s: how long RSM may make no progress with a copy.
            fetch_timeout_s: how long RSM may send no data of a fetch.
        """
        stub = pb_grpc.RemoteStorageManagerStub(channel)
        super().__init__(stub, peer_of("rsm", channel, peer))
        self._fetch_index = stub.FetchIndex
        self._copy = copying_method(channel)
        self._fetch = fetching_method(channel)
        self._copy_timeout_s = copy_timeout_s
        self._fetch_timeout_s = fetch_timeout_s

    def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        messages = map(request_to_wire, copy_to_proto(metadata, data))
        try:
            reply = call_with_stream(self._copy, messages, self._peer, self._copy_timeout_s)
        except RetriableRemoteStorageError as e:
            if was_ended_by_proxy(e.__cause__):
                size = sum(file.size_bytes for file in data.files)
                raise RetriableRemoteStorageError(
                    f"{e}; a proxy between here and RSM ended the copy of {size:,} bytes: raise "
                    "its limit of a request's size (nginx: client_max_body_size 0), and see its log"
                ) from e
            raise
        return reply.custom_metadata if reply.HasField("custom_metadata") else None

    def fetch_log_segment(
        self,
        metadata: RemoteLogSegmentMetadata,
        start_position: int,
        end_position: int | None = None,
    ) -> Iterator[bytes | memoryview]:
        request = pb.FetchLogSegmentRequest(
            metadata=metadata_to_proto(metadata),
            start_position=start_position,
            end_position=end_position,
        )
        yield from self._stream(self._fetch, request)

    open_log_segment = unary(RemoteStorageManager.open_log_segment)

    def fetch_index(
        self,
        metadata: RemoteLogSegmentMetadata,
        index_type: IndexType,
        *,
        as_stored: bool = False,
    ) -> Iterator[bytes]:
        request = pb.FetchIndexRequest(
            metadata=metadata_to_proto(metadata),
            index_type=index_types.to_proto(index_type),
            as_stored=as_stored,
        )
        for response in self._stream(self._fetch_index, request):
            yield response.data

    delete_log_segment_data = unary(RemoteStorageManager.delete_log_segment_data)
    delete_log_segment_data_batch = unary(RemoteStorageManager.delete_log_segment_data_batch)
    find_partition_object = unary(RemoteStorageManager.find_partition_object)

    def _stream(self, method: Callable[..., Any], request: object) -> Iterator[Any]:
        return call_stream(method, request, self._peer, self._fetch_timeout_s)


def _conforms(client: RemoteStorageManagerClient) -> RemoteStorageManager:
    return client


class SegmentObjectsClient(ContractClient):
    """Implement SegmentObjects by calls to a server. Thread-safe."""

    def __init__(self, channel: grpc.Channel, peer: str) -> None:
        stub = pb_grpc.RemoteStorageManagerStub(channel)
        super().__init__(stub, peer_of("rsm", channel, peer))

    list_segment_objects = unary(SegmentObjects.list_segment_objects)
    list_multipart_uploads = unary(SegmentObjects.list_multipart_uploads)
    read_segment_manifest = unary(SegmentObjects.read_segment_manifest)
    delete_segment_objects = unary(SegmentObjects.delete_segment_objects)

    def abort_multipart_uploads(
        self, uploads: Sequence[tuple[ObjectLocation, str]]
    ) -> list[RemoteStorageError | None]:
        request = pb.AbortMultipartUploadsRequest(
            uploads=[
                pb.MultipartUpload(location=convert.location_to_proto(where), upload_id=upload_id)
                for where, upload_id in uploads
            ]
        )
        reply = call_once(self._stub.AbortMultipartUploads, request, self._peer)
        return [outcome_of(status) for status in reply.outcomes]

    rewrap_keys = unary(SegmentObjects.rewrap_keys)
    put_deployment_state = unary(SegmentObjects.put_deployment_state)
    deployment_state = unary(SegmentObjects.deployment_state)


def _objects_conform(client: SegmentObjectsClient) -> SegmentObjects:
    return client
