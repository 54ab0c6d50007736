"""Stored objects and uploads, remote_storage_manager.proto."""

from services.api.ids import uuid_from_text, uuid_to_text
from services.api.segment_digests import CopyDigests
from services.api.segment_objects import (
    DoomedObject,
    MultipartUpload,
    ObjectLocation,
    ObjectPage,
    ObjectQuery,
    SegmentObject,
    SegmentObjectName,
    StoredManifest,
    UploadPage,
)
from services.api.validation import within
from services.rpc.converters.enums import segment_object_kind
from services.rpc.converters.segment_digests import digests_from_proto, digests_to_proto
from services.rpc.converters.shared import (
    items_from_proto,
    metadata_from_proto,
    metadata_to_proto,
    require_set,
)
from tieredstorage.v1 import remote_storage_manager_pb2 as pb


def object_query_to_proto(
    query: ObjectQuery, page_size: int, page_token: str
) -> pb.ListSegmentObjectsRequest:
    return pb.ListSegmentObjectsRequest(
        location_id=query.location_id,
        shard=query.shard,
        shards=query.shards,
        page_size=page_size,
        page_token=page_token,
    )


def object_query_from_proto(message: pb.ListSegmentObjectsRequest) -> ObjectQuery:
    return ObjectQuery(message.location_id, message.shard, message.shards)


def object_page_to_proto(page: ObjectPage) -> pb.ListSegmentObjectsResponse:
    return pb.ListSegmentObjectsResponse(
        objects=[_object_to_proto(each) for each in page.objects],
        next_page_token=page.next_page_token,
    )


def object_page_from_proto(message: pb.ListSegmentObjectsResponse) -> ObjectPage:
    objects = items_from_proto(message.objects, "objects", _object_from_proto)
    return ObjectPage(objects, message.next_page_token)


def upload_page_to_proto(page: UploadPage) -> pb.ListMultipartUploadsResponse:
    return pb.ListMultipartUploadsResponse(
        uploads=[_upload_to_proto(each) for each in page.uploads],
        next_page_token=page.next_page_token,
    )


def upload_page_from_proto(message: pb.ListMultipartUploadsResponse) -> UploadPage:
    uploads = items_from_proto(message.uploads, "uploads", _upload_from_proto)
    return UploadPage(uploads, message.next_page_token)


def location_to_proto(location: ObjectLocation) -> pb.ObjectLocation:
    return pb.ObjectLocation(location_id=location.location_id, key=location.key)


def location_from_proto(message: pb.ObjectLocation) -> ObjectLocation:
    return ObjectLocation(message.location_id, message.key)


def manifest_to_proto(manifest: StoredManifest) -> pb.ReadSegmentManifestResponse:
    return pb.ReadSegmentManifestResponse(
        metadata=metadata_to_proto(manifest.metadata),
        attempt=manifest.attempt,
        written_at_ms=manifest.written_at_ms,
        log_size_bytes=manifest.log_size_bytes,
        indexes_size_bytes=manifest.indexes_size_bytes,
        digests=None if manifest.digests is None else digests_to_proto(manifest.digests),
    )


def manifest_from_proto(message: pb.ReadSegmentManifestResponse) -> StoredManifest:
    with within("metadata"):
        metadata = metadata_from_proto(message.metadata)
    return StoredManifest(
        metadata=metadata,
        attempt=message.attempt,
        written_at_ms=message.written_at_ms,
        log_size_bytes=message.log_size_bytes,
        indexes_size_bytes=message.indexes_size_bytes,
        digests=_digests_from_proto(message),
    )


def _digests_from_proto(message: pb.ReadSegmentManifestResponse) -> CopyDigests | None:
    if not message.HasField("digests"):
        return None
    with within("digests"):
        return digests_from_proto(message.digests)


def doomed_to_proto(doomed: DoomedObject) -> pb.DoomedObject:
    return pb.DoomedObject(location=location_to_proto(doomed.location), if_etag=doomed.if_etag)


def doomed_from_proto(message: pb.DeleteSegmentObjectsRequest) -> tuple[DoomedObject, ...]:
    return items_from_proto(message.objects, "objects", _doomed_from_proto)


def doomed_uploads_from_proto(
    message: pb.AbortMultipartUploadsRequest,
) -> tuple[tuple[ObjectLocation, str], ...]:
    return items_from_proto(message.uploads, "uploads", _doomed_upload_from_proto)


def _doomed_upload_from_proto(message: pb.MultipartUpload) -> tuple[ObjectLocation, str]:
    require_set(message, "location")
    return location_from_proto(message.location), message.upload_id


def _doomed_from_proto(message: pb.DoomedObject) -> DoomedObject:
    require_set(message, "location")
    if_etag = message.if_etag if message.HasField("if_etag") else None
    return DoomedObject(location_from_proto(message.location), if_etag)


def _object_to_proto(stored: SegmentObject) -> pb.SegmentObject:
    return pb.SegmentObject(
        location=location_to_proto(stored.location),
        name=_name_to_proto(stored.name),
        size_bytes=stored.size_bytes,
        etag=stored.etag,
        modified_ms=stored.modified_ms,
    )


def _object_from_proto(message: pb.SegmentObject) -> SegmentObject:
    return SegmentObject(
        location=location_from_proto(message.location),
        name=_name_from_proto(message.name),
        size_bytes=message.size_bytes,
        etag=message.etag,
        modified_ms=message.modified_ms,
    )


def _upload_to_proto(upload: MultipartUpload) -> pb.MultipartUpload:
    return pb.MultipartUpload(
        location=location_to_proto(upload.location),
        upload_id=upload.upload_id,
        name=_name_to_proto(upload.name),
        begun_ms=upload.begun_ms,
    )


def _upload_from_proto(message: pb.MultipartUpload) -> MultipartUpload:
    return MultipartUpload(
        location=location_from_proto(message.location),
        upload_id=message.upload_id,
        name=_name_from_proto(message.name),
        begun_ms=message.begun_ms,
    )


def _name_to_proto(name: SegmentObjectName) -> pb.SegmentObjectName:
    return pb.SegmentObjectName(
        topic_id=uuid_to_text(name.topic_id),
        partition=name.partition,
        start_offset=name.start_offset,
        segment_id=uuid_to_text(name.segment_id),
        kind=segment_object_kind.to_proto(name.kind),
        attempt=name.attempt,
    )


def _name_from_proto(message: pb.SegmentObjectName) -> SegmentObjectName:
    return SegmentObjectName(
        topic_id=uuid_from_text(message.topic_id, "topic_id"),
        partition=message.partition,
        start_offset=message.start_offset,
        segment_id=uuid_from_text(message.segment_id, "segment_id"),
        kind=segment_object_kind.from_proto(message.kind, "kind"),
        attempt=message.attempt if message.HasField("attempt") else None,
    )
