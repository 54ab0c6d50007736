"""Call RemoteStorageManager over gRPC."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.remote_storage_manager import (
    IndexType,
    LogSegmentData,
    OpenedLogSegment,
    RemoteStorageManager,
)
from services.api.segment_objects import (
    CURRENT_LOCATION,
    ObjectLocation,
    ObjectPage,
    ObjectQuery,
    ObjectToDelete,
    SegmentObjects,
    StoredManifest,
    UploadPage,
)
from services.api.segments import RemoteLogSegmentMetadata
from services.rpc.client.calls import call_once, call_stream, call_with_stream
from services.rpc.client.channel import peer_of
from services.rpc.converters import storage as convert
from services.rpc.converters.shared import index_type as index_types
from services.rpc.converters.shared import metadata_to_proto, topic_id_partition_to_proto
from services.rpc.converters.storage import copy_to_proto
from services.rpc.statuses import outcome_of, was_ended_by_proxy
from services.rpc.wire import copying_method, fetching_method, request_to_wire
from tieredstorage.v1 import remote_storage_manager_pb2 as pb
from tieredstorage.v1 import remote_storage_manager_pb2_grpc as pb_grpc

# RSM may wait for a part buffer for 60 s before it takes the next message. After the last one it
# waits for the parts under way, completes the upload, and writes indexes and manifest.
COPY_TIMEOUT_S = 180.0
FETCH_TIMEOUT_S = 60.0


class RemoteStorageManagerClient:
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
        self._stub = pb_grpc.RemoteStorageManagerStub(channel)
        self._copy = copying_method(channel)
        self._fetch = fetching_method(channel)
        self._peer = peer_of("rsm", channel, peer)
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

    def open_log_segment(self, metadata: RemoteLogSegmentMetadata) -> OpenedLogSegment:
        request = pb.OpenLogSegmentRequest(metadata=metadata_to_proto(metadata))
        return convert.opened_from_proto(call_once(self._stub.OpenLogSegment, request, self._peer))

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
        for response in self._stream(self._stub.FetchIndex, request):
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

    def find_partition_object(self, topic_id_partition: TopicIdPartition) -> str | None:
        request = pb.FindPartitionObjectRequest(
            topic_id_partition=topic_id_partition_to_proto(topic_id_partition)
        )
        reply = call_once(self._stub.FindPartitionObject, request, self._peer)
        return reply.object_key if reply.HasField("object_key") else None

    def _stream(self, method: Callable[..., Any], request: object) -> Iterator[Any]:
        return call_stream(method, request, self._peer, self._fetch_timeout_s)


def _conforms(client: RemoteStorageManagerClient) -> RemoteStorageManager:
    return client


class SegmentObjectsClient:
    """Implement SegmentObjects by calls to a server. Thread-safe."""

    def __init__(self, channel: grpc.Channel, peer: str) -> None:
        self._stub = pb_grpc.RemoteStorageManagerStub(channel)
        self._peer = peer_of("rsm", channel, peer)

    def list_segment_objects(
        self, query: ObjectQuery, *, page_size: int = 0, page_token: str = ""
    ) -> ObjectPage:
        request = convert.object_query_to_proto(query)
        request.page_size, request.page_token = page_size, page_token
        return convert.object_page_from_proto(
            call_once(self._stub.ListSegmentObjects, request, self._peer)
        )

    def list_multipart_uploads(
        self, location_id: int = CURRENT_LOCATION, *, page_size: int = 0, page_token: str = ""
    ) -> UploadPage:
        request = pb.ListMultipartUploadsRequest(
            location_id=location_id, page_size=page_size, page_token=page_token
        )
        return convert.upload_page_from_proto(
            call_once(self._stub.ListMultipartUploads, request, self._peer)
        )

    def read_segment_manifest(self, location: ObjectLocation) -> StoredManifest:
        request = pb.ReadSegmentManifestRequest(location=convert.location_to_proto(location))
        return convert.manifest_from_proto(
            call_once(self._stub.ReadSegmentManifest, request, self._peer)
        )

    def delete_segment_objects(
        self, objects: Sequence[ObjectToDelete], *, committed_copies: bool = False
    ) -> list[RemoteStorageError | None]:
        request = pb.DeleteSegmentObjectsRequest(
            objects=[convert.object_to_delete_to_proto(each) for each in objects],
            committed_copies=committed_copies,
        )
        reply = call_once(self._stub.DeleteSegmentObjects, request, self._peer)
        return [outcome_of(status) for status in reply.outcomes]

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

    def put_deployment_state(self, name: str, data: bytes) -> None:
        request = pb.PutDeploymentStateRequest(name=name, data=data)
        call_once(self._stub.PutDeploymentState, request, self._peer)

    def deployment_state(self, name: str) -> bytes:
        request = pb.GetDeploymentStateRequest(name=name)
        data: bytes = call_once(self._stub.GetDeploymentState, request, self._peer).data
        return data


def _objects_conform(client: SegmentObjectsClient) -> SegmentObjects:
    return client
