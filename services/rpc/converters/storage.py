"""remote_storage_manager.proto."""

from collections.abc import Iterable, Iterator

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
from tieredstorage.v1 import remote_storage_manager_pb2 as pb


def copy_to_proto(
    metadata: RemoteLogSegmentMetadata, data: LogSegmentData
) -> Iterator[pb.CopyLogSegmentDataRequest]:
    """The header, then a message for each chunk, taken from `data` as the stream asks for it."""
    files = [
        pb.SegmentFileHeader(
            file=segment_file.to_proto(f.file), size_bytes=f.size_bytes, crc32c=f.crc32c
        )
        for f in data.files
    ]
    header = pb.CopyLogSegmentHeader(metadata=metadata_to_proto(metadata), files=files)
    yield pb.CopyLogSegmentDataRequest(header=header)
    for chunk in data.chunks:
        yield pb.CopyLogSegmentDataRequest(
            chunk=pb.SegmentChunk(file=segment_file.to_proto(chunk.file), data=chunk.data)
        )


def copy_from_proto(
    requests: Iterable[pb.CopyLogSegmentDataRequest],
) -> tuple[RemoteLogSegmentMetadata, LogSegmentData]:
    """Read the header now, the chunks as they are taken.

    Raises:
        InvalidRequestError: no header first, or a malformed one; from the chunks: a second header.
    """
    messages = iter(requests)
    first = next(messages, None)
    if first is None or not first.HasField("header"):
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


def _chunks_from_proto(messages: Iterator[pb.CopyLogSegmentDataRequest]) -> Iterator[SegmentChunk]:
    for message in messages:
        if not message.HasField("chunk"):
            raise InvalidRequestError("chunk: every message after the first must be a chunk")
        yield SegmentChunk(
            segment_file.from_proto(message.chunk.file, "chunk.file"), message.chunk.data
        )
