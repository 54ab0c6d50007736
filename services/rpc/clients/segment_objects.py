"""What RSM's stores hold, over gRPC."""

from collections.abc import Sequence

import grpc

from services.api.errors import RemoteStorageError
from services.api.segment_objects import (
    CURRENT_LOCATION,
    DoomedObject,
    ObjectLocation,
    ObjectPage,
    ObjectQuery,
    SegmentObjects,
    StoredManifest,
    UploadPage,
)
from services.rpc.clients.calls import call_once
from services.rpc.converters import segment_objects as convert
from services.rpc.statuses import outcome_of
from tieredstorage.v1 import remote_storage_manager_pb2 as pb
from tieredstorage.v1 import remote_storage_manager_pb2_grpc as pb_grpc


class SegmentObjectsClient:
    """Satisfies services.api.segment_objects.SegmentObjects; thread-safe."""

    def __init__(self, channel: grpc.Channel, peer: str) -> None:
        self._stub = pb_grpc.RemoteStorageManagerStub(channel)
        self._peer = f"rsm at {peer}"

    def list_segment_objects(
        self, query: ObjectQuery, *, page_size: int = 0, page_token: str = ""
    ) -> ObjectPage:
        request = convert.object_query_to_proto(query, page_size, page_token)
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
        self, objects: Sequence[DoomedObject]
    ) -> list[RemoteStorageError | None]:
        request = pb.DeleteSegmentObjectsRequest(
            objects=[convert.doomed_to_proto(doomed) for doomed in objects]
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


def _conforms(client: SegmentObjectsClient) -> SegmentObjects:
    return client
