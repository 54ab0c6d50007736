"""The chunks of a copy, held to what was announced."""

from collections.abc import Iterable, Iterator

from services.api.errors import CorruptSegmentError, InvalidRequestError
from services.api.remote_storage_manager import SegmentChunk, SegmentFileHeader
from services.api.validation import require
from services.rsm.digest import RunningDigest


class IncomingFiles:
    """Takes chunks off the stream, one file after another. Single use, like the stream."""

    def __init__(self, chunks: Iterable[SegmentChunk]) -> None:
        self._chunks = iter(chunks)

    def take(
        self, header: SegmentFileHeader, digest: RunningDigest
    ) -> Iterator[bytes | memoryview]:
        """The bytes of the next file, which go through `digest` on their way.

        Raises:
            InvalidRequestError: a chunk of another file, or more or fewer bytes than announced.
            CorruptSegmentError: the announced crc32c is another; raised after the last byte.
        """
        name, size, received = header.file.name, header.size_bytes, 0
        while received < size:
            chunk = next(self._chunks, None)
            if chunk is None:
                raise InvalidRequestError(f"chunks: {name} ended after {received} of {size} bytes")
            in_order = chunk.file is header.file
            require(in_order, "chunks", f"{chunk.file.name} within {name}, at byte {received}")
            received += len(chunk.data)
            require(received <= size, "chunks", f"{name} has more than the announced {size} bytes")
            require(len(chunk.data) > 0, "chunks", f"an empty one of {name}")
            digest.update(chunk.data)
            yield chunk.data
        if header.crc32c is not None and header.crc32c != digest.whole.crc32c:
            raise CorruptSegmentError(
                f"{name}: crc32c is {digest.whole.crc32c:08x}, announced was {header.crc32c:08x}"
            )

    def expect_end(self) -> None:
        """Raise InvalidRequestError if a chunk follows."""
        chunk = next(self._chunks, None)
        if chunk is not None:
            raise InvalidRequestError(
                f"chunks: {len(chunk.data)} bytes of {chunk.file.name} beyond what was announced"
            )
