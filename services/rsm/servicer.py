"""RemoteStorageManager on the wire: convert, one call, reply."""

from collections.abc import Iterator

import grpc
from google.rpc import status_pb2

from services.api.remote_storage_manager import RemoteStorageManager
from services.api.validation import within
from services.rpc.converters.enums import index_type
from services.rpc.converters.shared import metadata_from_proto
from services.rpc.converters.storage import copy_from_proto
from services.rpc.statuses import status_of
from tieredstorage.v1 import remote_storage_manager_pb2 as pb
from tieredstorage.v1 import remote_storage_manager_pb2_grpc as pb_grpc


class RemoteStorageManagerServicer(pb_grpc.RemoteStorageManagerServicer):
    """Serves any RemoteStorageManager."""

    def __init__(self, manager: RemoteStorageManager) -> None:
        self._manager = manager

    def CopyLogSegmentData(
        self,
        request_iterator: Iterator[pb.CopyLogSegmentDataRequest],
        context: grpc.ServicerContext,
    ) -> pb.CopyLogSegmentDataResponse:
        metadata, data = copy_from_proto(request_iterator)
        custom_metadata = self._manager.copy_log_segment_data(metadata, data)
        return pb.CopyLogSegmentDataResponse(custom_metadata=custom_metadata)

    def FetchLogSegment(
        self, request: pb.FetchLogSegmentRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.FetchLogSegmentResponse]:
        with within("metadata"):
            metadata = metadata_from_proto(request.metadata)
        end = request.end_position if request.HasField("end_position") else None
        for data in self._manager.fetch_log_segment(metadata, request.start_position, end):
            yield pb.FetchLogSegmentResponse(data=data)

    def FetchIndex(
        self, request: pb.FetchIndexRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.FetchIndexResponse]:
        with within("metadata"):
            metadata = metadata_from_proto(request.metadata)
        kind = index_type.from_proto(request.index_type, "index_type")
        for data in self._manager.fetch_index(metadata, kind):
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
        with within("metadatas"):
            metadatas = [metadata_from_proto(metadata) for metadata in request.metadatas]
        outcomes = self._manager.delete_log_segment_data_batch(metadatas)
        statuses = [status_of(error) if error else status_pb2.Status() for error in outcomes]
        return pb.DeleteLogSegmentDataBatchResponse(outcomes=statuses)
