"""RemoteStorageManager on the wire: convert, one call, reply."""

from collections.abc import Iterator
from typing import Protocol

import grpc

from services.api.remote_storage_manager import RemoteStorageManager
from services.api.segment_objects import SegmentObjects
from services.api.validation import within
from services.common.copied_bytes import BYTES_COPIED
from services.rpc.converters import storage as convert
from services.rpc.converters.fields import items_from_proto
from services.rpc.converters.rpcs import served
from services.rpc.converters.shared import (
    index_type,
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


def _objects(servicer: "RemoteStorageManagerServicer") -> SegmentObjects:
    return servicer.manager.objects


class RemoteStorageManagerServicer(pb_grpc.RemoteStorageManagerServicer):
    def __init__(self, manager: ServedManager) -> None:
        self.manager = manager

    def CopyLogSegmentData(
        self,
        request_iterator: Iterator[CopyRequest],
        context: grpc.ServicerContext,
    ) -> pb.CopyLogSegmentDataResponse:
        metadata, data = copy_from_proto(request_iterator)
        custom_metadata = self.manager.copy_log_segment_data(metadata, data)
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
        for data in self.manager.fetch_log_segment(metadata, request.start_position, end):
            BYTES_COPIED.labels("message").inc(len(data))
            yield data

    OpenLogSegment = served(RemoteStorageManager.open_log_segment)

    def FetchIndex(
        self, request: pb.FetchIndexRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.FetchIndexResponse]:
        with within("metadata"):
            metadata = read_segment_from_proto(request.metadata)
        kind = index_type.from_proto(request.index_type, "index_type")
        for data in self.manager.fetch_index(metadata, kind, as_stored=request.as_stored):
            yield pb.FetchIndexResponse(data=data)

    DeleteLogSegmentData = served(RemoteStorageManager.delete_log_segment_data)
    DeleteLogSegmentDataBatch = served(RemoteStorageManager.delete_log_segment_data_batch)
    FindPartitionObject = served(RemoteStorageManager.find_partition_object)
    ListSegmentObjects = served(SegmentObjects.list_segment_objects, _objects)
    ListMultipartUploads = served(SegmentObjects.list_multipart_uploads, _objects)
    ReadSegmentManifest = served(SegmentObjects.read_segment_manifest, _objects)
    DeleteSegmentObjects = served(SegmentObjects.delete_segment_objects, _objects)

    def AbortMultipartUploads(
        self, request: pb.AbortMultipartUploadsRequest, context: grpc.ServicerContext
    ) -> pb.AbortMultipartUploadsResponse:
        uploads = items_from_proto(request.uploads, "uploads", convert.upload_to_delete_from_proto)
        outcomes = self.manager.objects.abort_multipart_uploads(uploads)
        return pb.AbortMultipartUploadsResponse(outcomes=map(status_of_outcome, outcomes))

    RewrapKeys = served(SegmentObjects.rewrap_keys, _objects)
    PutDeploymentState = served(SegmentObjects.put_deployment_state, _objects)
    GetDeploymentState = served(SegmentObjects.deployment_state, _objects)


def add_to_server(manager: ServedManager, server: grpc.Server) -> None:
    """Serve `manager`; the chunks of logs come and go as they are, not through messages."""
    servicer = RemoteStorageManagerServicer(manager)
    instead = {
        "CopyLogSegmentData": copy_handler(servicer.CopyLogSegmentData),
        "FetchLogSegment": chunks_handler(servicer.log_chunks),
    }
    pb_grpc.add_RemoteStorageManagerServicer_to_server(servicer, server)
    replace_handlers(server, "tieredstorage.v1.RemoteStorageManager", instead)
