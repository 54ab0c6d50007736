"""Convert the messages of remote_storage_manager.proto."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TypeAlias

from services.api.errors import InvalidRequestError
from services.api.ids import uuid_from_text, uuid_to_text
from services.api.remote_storage_manager import (
    CopyDigests,
    FileDigest,
    IndexType,
    LogDigest,
    LogSegmentData,
    MultipartUpload,
    ObjectLocation,
    ObjectPage,
    ObjectQuery,
    ObjectToDelete,
    OpenedLogSegment,
    SegmentChunk,
    SegmentFileHeader,
    SegmentObject,
    SegmentObjectName,
    StoredManifest,
    UploadPage,
)
from services.api.segments import RemoteLogSegmentMetadata
from services.api.validation import within
from services.rpc.converters.shared import (
    index_type,
    items_from_proto,
    metadata_from_proto,
    metadata_to_proto,
    require_set,
    segment_file,
    segment_object_kind,
)
from tieredstorage.v1 import remote_log_segment_pb2 as segment_pb
from tieredstorage.v1 import remote_storage_manager_pb2 as pb

# Enough for a few leader epochs. Longer ones are not cached, so that no client can fill memory.
_KEPT_BYTES = 1024

CopyRequest: TypeAlias = pb.CopyLogSegmentDataRequest | SegmentChunk
"""A chunk is passed without its message (see services.rpc.wire)."""


def read_segment_from_proto(
    message: segment_pb.RemoteLogSegmentMetadata,
) -> RemoteLogSegmentMetadata:
    """Read metadata from a cache: readers request the same few segments again and again."""
    if message.ByteSize() > _KEPT_BYTES:
        return metadata_from_proto(message)
    return _read_segment(message.SerializeToString())


@lru_cache(maxsize=1024)
def _read_segment(written: bytes) -> RemoteLogSegmentMetadata:
    return metadata_from_proto(segment_pb.RemoteLogSegmentMetadata.FromString(written))


def copy_to_proto(
    metadata: RemoteLogSegmentMetadata, data: LogSegmentData
) -> Iterator[CopyRequest]:
    """Yield the header, then the chunks, taken from `data` as the stream requests them."""
    files = [
        pb.SegmentFileHeader(
            file=segment_file.to_proto(f.file), size_bytes=f.size_bytes, crc32c=f.crc32c
        )
        for f in data.files
    ]
    header = pb.CopyLogSegmentHeader(metadata=metadata_to_proto(metadata), files=files)
    yield pb.CopyLogSegmentDataRequest(header=header)
    yield from data.chunks


def copy_from_proto(
    requests: Iterable[CopyRequest],
) -> tuple[RemoteLogSegmentMetadata, LogSegmentData]:
    """Read the header now, and each chunk when it is taken.

    Raises:
        InvalidRequestError: the first message is not a header, or a malformed one; from the chunks:
            a second header.
    """
    messages = iter(requests)
    first = next(messages, None)
    if first is None or isinstance(first, SegmentChunk) or not first.HasField("header"):
        raise InvalidRequestError("header: must be the first message")
    with within("header"):
        require_set(first.header, "metadata")
        with within("metadata"):
            metadata = metadata_from_proto(first.header.metadata)
        files = items_from_proto(first.header.files, "files", _file_header_from_proto)
        return metadata, LogSegmentData(files, _chunks_from_proto(messages))


def _file_header_from_proto(message: pb.SegmentFileHeader) -> SegmentFileHeader:
    return SegmentFileHeader(
        file=segment_file.from_proto(message.file, "file"),
        size_bytes=message.size_bytes,
        crc32c=message.crc32c if message.HasField("crc32c") else None,
    )


def _chunks_from_proto(messages: Iterator[CopyRequest]) -> Iterator[SegmentChunk]:
    for message in messages:
        if isinstance(message, SegmentChunk):
            yield message
            continue
        if not message.HasField("chunk"):
            raise InvalidRequestError("chunk: every message after the first must be a chunk")
        yield SegmentChunk(
            segment_file.from_proto(message.chunk.file, "chunk.file"), message.chunk.data
        )


def opened_to_proto(opened: OpenedLogSegment) -> pb.OpenLogSegmentResponse:
    log = _log_to_proto(opened.log)
    return pb.OpenLogSegmentResponse(url=opened.url, valid_for_ms=opened.valid_for_ms, log=log)


def opened_from_proto(message: pb.OpenLogSegmentResponse) -> OpenedLogSegment:
    with within("log"):
        log = _log_from_proto(message.log)
    return OpenedLogSegment(message.url, message.valid_for_ms, log)


def digests_to_proto(digests: CopyDigests) -> pb.CopyDigests:
    indexes = [
        pb.IndexDigest(
            index_type=index_type.to_proto(kind), whole=_file_to_proto(digests.indexes[kind])
        )
        for kind in IndexType
        if kind in digests.indexes
    ]
    return pb.CopyDigests(log=_log_to_proto(digests.log), indexes=indexes)


def digests_from_proto(message: pb.CopyDigests) -> CopyDigests:
    with within("log"):
        log = _log_from_proto(message.log)
    return CopyDigests(log, dict(items_from_proto(message.indexes, "indexes", _index_from_proto)))


def _index_from_proto(message: pb.IndexDigest) -> tuple[IndexType, FileDigest]:
    return index_type.from_proto(message.index_type, "index_type"), _file_from_proto(message.whole)


def _log_to_proto(digest: LogDigest) -> pb.LogDigest:
    return pb.LogDigest(
        whole=_file_to_proto(digest.whole),
        chunk_bytes=digest.chunk_bytes,
        chunk_crc32c=digest.chunk_crc32c,
    )


def _log_from_proto(message: pb.LogDigest) -> LogDigest:
    crcs = tuple(message.chunk_crc32c)
    return LogDigest(_file_from_proto(message.whole), crcs, message.chunk_bytes)


def _file_to_proto(digest: FileDigest) -> pb.FileDigest:
    return pb.FileDigest(size_bytes=digest.size_bytes, crc32c=digest.crc32c)


def _file_from_proto(message: pb.FileDigest) -> FileDigest:
    return FileDigest(message.size_bytes, message.crc32c)


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
        other_deployment_id=manifest.other_deployment_id,
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
        other_deployment_id=message.other_deployment_id,
    )


def _digests_from_proto(message: pb.ReadSegmentManifestResponse) -> CopyDigests | None:
    if not message.HasField("digests"):
        return None
    with within("digests"):
        return digests_from_proto(message.digests)


def object_to_delete_to_proto(named: ObjectToDelete) -> pb.DoomedObject:
    return pb.DoomedObject(location=location_to_proto(named.location), if_etag=named.if_etag)


def deletes_from_proto(
    message: pb.DeleteSegmentObjectsRequest,
) -> tuple[ObjectToDelete, ...]:
    return items_from_proto(message.objects, "objects", _delete_from_proto)


def uploads_to_delete_from_proto(
    message: pb.AbortMultipartUploadsRequest,
) -> tuple[tuple[ObjectLocation, str], ...]:
    return items_from_proto(message.uploads, "uploads", _upload_to_delete_from_proto)


def _upload_to_delete_from_proto(message: pb.MultipartUpload) -> tuple[ObjectLocation, str]:
    require_set(message, "location")
    return location_from_proto(message.location), message.upload_id


def _delete_from_proto(message: pb.DoomedObject) -> ObjectToDelete:
    require_set(message, "location")
    if_etag = message.if_etag if message.HasField("if_etag") else None
    return ObjectToDelete(location_from_proto(message.location), if_etag)


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
