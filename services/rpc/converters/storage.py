"""Convert the messages of remote_storage_manager.proto."""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TypeAlias

from services.api.errors import InvalidRequestError
from services.api.remote_storage_manager import (
    CopyDigests,
    FileDigest,
    IndexType,
    LogSegmentData,
    OpenedLogSegment,
    SegmentChunk,
    SegmentFileHeader,
)
from services.api.segment_objects import (
    KeysInUse,
    ObjectLocation,
    ObjectPage,
    ObjectQuery,
    ObjectToDelete,
    StoredManifest,
    UploadPage,
)
from services.api.segments import RemoteLogSegmentMetadata
from services.api.validation import within
from services.rpc.converters.fields import converters, items_from_proto, register, require_set
from services.rpc.converters.shared import (
    index_type,
    metadata_from_proto,
    metadata_to_proto,
    segment_file,
)
from tieredstorage.v1 import remote_log_segment_pb2 as segment_pb
from tieredstorage.v1 import remote_storage_manager_pb2 as pb

# Enough for a few leader epochs. Longer ones are not cached, so that no client can fill memory.
_KEPT_BYTES = 1024

CopyRequest: TypeAlias = pb.CopyLogSegmentDataRequest | SegmentChunk
"""A chunk is passed without its message (see services.rpc.wire)."""


_header_to_proto, _header_from_proto = converters(SegmentFileHeader, pb.SegmentFileHeader)
_file_to_proto, _file_from_proto = converters(FileDigest, pb.FileDigest)


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
    files = map(_header_to_proto, data.files)
    header = pb.CopyLogSegmentHeader(
        metadata=metadata_to_proto(metadata), files=files, replaces=data.replaces
    )
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
        files = items_from_proto(first.header.files, "files", _header_from_proto)
        chunks = _chunks_from_proto(messages)
        return metadata, LogSegmentData(files, chunks, first.header.replaces)


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


def _indexes_to_proto(indexes: Mapping[IndexType, FileDigest]) -> list[pb.IndexDigest]:
    return [
        pb.IndexDigest(index_type=index_type.to_proto(kind), whole=_file_to_proto(indexes[kind]))
        for kind in IndexType
        if kind in indexes
    ]


def _indexes_from_proto(
    messages: Iterable[pb.IndexDigest], field: str
) -> dict[IndexType, FileDigest]:
    return dict(items_from_proto(messages, field, _index_from_proto))


def _index_from_proto(message: pb.IndexDigest) -> tuple[IndexType, FileDigest]:
    return index_type.from_proto(message.index_type, "index_type"), _file_from_proto(message.whole)


register(Mapping[IndexType, FileDigest], _indexes_to_proto, _indexes_from_proto)
digests_to_proto, digests_from_proto = converters(CopyDigests, pb.CopyDigests)
converters(OpenedLogSegment, pb.OpenLogSegmentResponse)
converters(StoredManifest, pb.ReadSegmentManifestResponse)
converters(KeysInUse, pb.RewrapKeysResponse)
converters(ObjectQuery, pb.ListSegmentObjectsRequest, besides=["page_size", "page_token"])
converters(ObjectPage, pb.ListSegmentObjectsResponse)
converters(UploadPage, pb.ListMultipartUploadsResponse)
location_to_proto, location_from_proto = converters(ObjectLocation, pb.ObjectLocation)
converters(ObjectToDelete, pb.DoomedObject)


def upload_to_delete_from_proto(message: pb.MultipartUpload) -> tuple[ObjectLocation, str]:
    require_set(message, "location")
    return location_from_proto(message.location), message.upload_id
