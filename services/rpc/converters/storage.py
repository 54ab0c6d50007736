"""remote_storage_manager.proto."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TypeAlias

from services.api.errors import InvalidRequestError
from services.api.remote_storage_manager import (
    LogSegmentData,
    SegmentChunk,
    SegmentFileHeader,
)
from services.api.segments import RemoteLogSegmentMetadata
from services.api.validation import within
from services.rpc.converters.enums import segment_file
from services.rpc.converters.shared import metadata_from_proto, metadata_to_proto, require_set
from tieredstorage.v1 import remote_log_segment_pb2 as segment_pb
from tieredstorage.v1 import remote_storage_manager_pb2 as pb

# Of a few leader epochs. Longer ones are not kept: who sends them must not fill memory.
_KEPT_BYTES = 1024

CopyRequest: TypeAlias = pb.CopyLogSegmentDataRequest | SegmentChunk
"""A chunk goes without its message (see services.rpc.wire)."""


def read_segment_from_proto(
    message: segment_pb.RemoteLogSegmentMetadata,
) -> RemoteLogSegmentMetadata:
    """As metadata_from_proto; sooner, as readers ask for the same few segments again and again."""
    if message.ByteSize() > _KEPT_BYTES:
        return metadata_from_proto(message)
    return _read_segment(message.SerializeToString())


@lru_cache(maxsize=1024)
def _read_segment(written: bytes) -> RemoteLogSegmentMetadata:
    return metadata_from_proto(segment_pb.RemoteLogSegmentMetadata.FromString(written))


def copy_to_proto(
    metadata: RemoteLogSegmentMetadata, data: LogSegmentData
) -> Iterator[CopyRequest]:
    """The header, then the chunks, taken from `data` as the stream asks for them."""
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
    """Read the header now, the chunks as they are taken.

    Raises:
        InvalidRequestError: no header first, or a malformed one; from the chunks: a second header.
    """
    messages = iter(requests)
    first = next(messages, None)
    if first is None or isinstance(first, SegmentChunk) or not first.HasField("header"):
        raise InvalidRequestError("header: must be the first message")
    with within("header"):
        require_set(first.header, "metadata")
        with within("metadata"):
            metadata = metadata_from_proto(first.header.metadata)
        with within("files"):
            files = tuple(_file_header_from_proto(f) for f in first.header.files)
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
