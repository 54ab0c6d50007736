"""RemoteStorageManager on the wire: convert, one call, reply."""

from collections.abc import Iterator
from typing import Protocol

import grpc

from services.api.remote_storage_manager import RemoteStorageManager
from services.api.segment_objects import SegmentObjects
from services.api.validation import within
from services.rpc.converters import storage as convert
from services.rpc.converters.fields import items_from_proto, require_set
from services.rpc.converters.shared import (
    index_type,
    metadata_from_proto,
    partition_of,
)
from services.rpc.converters.storage import CopyRequest, copy_from_proto, read_segment_from_proto
from services.rpc.statuses import status_of_outcome
from services.rpc.wire import chunks_handler, copy_handler, replace_handlers
from tieredstorage.v1 import remote_storage_manager_pb2 as pb
from tieredstorage.v1 import remote_storage_manager_pb2_grpc as pb_grpc


class ServedManager(RemoteStorageManager, Protocol):
    """A RemoteStorageManager that also lists its objects."""

    @property
    def objects(self) -> SegmentObjects: ...


class RemoteStorageManagerServicer(pb_grpc.RemoteStorageManagerServicer):
    def __init__(self, manager: ServedManager) -> None:
        self._manager = manager

    def CopyLogSegmentData(
        self,
        request_iterator: Iterator[CopyRequest],
        context: grpc.ServicerContext,
    ) -> pb.CopyLogSegmentDataResponse:
        metadata, data = copy_from_proto(request_iterator)
        custom_metadata = self._manager.copy_log_segment_data(metadata, data)
        return pb.CopyLogSegmentDataResponse(custom_metadata=custom_metadata)

    def FetchLogSegment(
        self, request: pb.FetchLogSegmentRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.FetchLogSegmentResponse]:
        for data in self.log_chunks(request, context):
            yield pb.FetchLogSegmentResponse(data=bytes(data))

    def log_chunks(
        self, request: pb.FetchLogSegmentRequest, context: grpc.ServicerContext
    ) -> Iterator[bytes | memoryview]:
        """Stream a log's chunks as raw bytes."""
        with within("metadata"):
            metadata = read_segment_from_proto(request.metadata)
        end = request.end_position if request.HasField("end_position") else None
        yield from self._manager.fetch_log_segment(metadata, request.start_position, end)

    def OpenLogSegment(
        self, request: pb.OpenLogSegmentRequest, context: grpc.ServicerContext
    ) -> pb.OpenLogSegmentResponse:
        with within("metadata"):
            metadata = read_segment_from_proto(request.metadata)
        return convert.opened_to_proto(self._manager.open_log_segment(metadata))

    def FetchIndex(
        self, request: pb.FetchIndexRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.FetchIndexResponse]:
        with within("metadata"):
            metadata = read_segment_from_proto(request.metadata)
        kind = index_type.from_proto(request.index_type, "index_type")
        for data in self._manager.fetch_index(metadata, kind, as_stored=request.as_stored):
            yield pb.FetchIndexResponse(data=data)

    def DeleteLogSegmentData(
        self, request: pb.DeleteLogSegmentDataRequest, context: grpc.ServicerContext
    ) -> pb.DeleteLogSegmentDataResponse:
        with within("metadata"):
            metadata = metadata_from_proto(request.metadata)
        self._manager.delete_log_segment_data(metadata)
        return pb.DeleteLogSegmentDataResponse()

    def DeleteLogSegmentDataBatch(
        self, request: pb.DeleteLogSegmentDataBatchRequest, context: grpc.ServicerContext
    ) -> pb.DeleteLogSegmentDataBatchResponse:
        metadatas = items_from_proto(request.metadatas, "metadatas", metadata_from_proto)
        outcomes = self._manager.delete_log_segment_data_batch(metadatas)
        return pb.DeleteLogSegmentDataBatchResponse(outcomes=map(status_of_outcome, outcomes))

    def FindPartitionObject(
        self, request: pb.FindPartitionObjectRequest, context: grpc.ServicerContext
    ) -> pb.FindPartitionObjectResponse:
        found = self._manager.find_partition_object(partition_of(request))
        return pb.FindPartitionObjectResponse(object_key=found)

    def ListSegmentObjects(
        self, request: pb.ListSegmentObjectsRequest, context: grpc.ServicerContext
    ) -> pb.ListSegmentObjectsResponse:
        page = self._manager.objects.list_segment_objects(
            convert.object_query_from_proto(request),
            page_size=request.page_size,
            page_token=request.page_token,
        )
        return convert.object_page_to_proto(page)

    def ListMultipartUploads(
        self, request: pb.ListMultipartUploadsRequest, context: grpc.ServicerContext
    ) -> pb.ListMultipartUploadsResponse:
        page = self._manager.objects.list_multipart_uploads(
            request.location_id, page_size=request.page_size, page_token=request.page_token
        )
        return convert.upload_page_to_proto(page)

    def ReadSegmentManifest(
        self, request: pb.ReadSegmentManifestRequest, context: grpc.ServicerContext
    ) -> pb.ReadSegmentManifestResponse:
        require_set(request, "location")
        location = convert.location_from_proto(request.location)
        return convert.manifest_to_proto(self._manager.objects.read_segment_manifest(location))

    def DeleteSegmentObjects(
        self, request: pb.DeleteSegmentObjectsRequest, context: grpc.ServicerContext
    ) -> pb.DeleteSegmentObjectsResponse:
        outcomes = self._manager.objects.delete_segment_objects(
            items_from_proto(request.objects, "objects", convert.object_to_delete_from_proto),
            committed_copies=request.committed_copies,
        )
        return pb.DeleteSegmentObjectsResponse(outcomes=map(status_of_outcome, outcomes))

    def AbortMultipartUploads(
        self, request: pb.AbortMultipartUploadsRequest, context: grpc.ServicerContext
    ) -> pb.AbortMultipartUploadsResponse:
        uploads = items_from_proto(request.uploads, "uploads", convert.upload_to_delete_from_proto)
        outcomes = self._manager.objects.abort_multipart_uploads(uploads)
        return pb.AbortMultipartUploadsResponse(outcomes=map(status_of_outcome, outcomes))

    def PutDeploymentState(
        self, request: pb.PutDeploymentStateRequest, context: grpc.ServicerContext
    ) -> pb.PutDeploymentStateResponse:
        self._manager.objects.put_deployment_state(request.name, request.data)
        return pb.PutDeploymentStateResponse()

    def GetDeploymentState(
        self, request: pb.GetDeploymentStateRequest, context: grpc.ServicerContext
    ) -> pb.GetDeploymentStateResponse:
        data = self._manager.objects.deployment_state(request.name)
        return pb.GetDeploymentStateResponse(data=data)


def add_to_server(manager: ServedManager, server: grpc.Server) -> None:
    """Serve `manager`; the chunks of logs come and go as they are, not through messages."""
    servicer = RemoteStorageManagerServicer(manager)
    instead = {
        "CopyLogSegmentData": copy_handler(servicer.CopyLogSegmentData),
        "FetchLogSegment": chunks_handler(servicer.log_chunks),
    }
    pb_grpc.add_RemoteStorageManagerServicer_to_server(servicer, server)
    replace_handlers(server, "tieredstorage.v1.RemoteStorageManager", instead)
