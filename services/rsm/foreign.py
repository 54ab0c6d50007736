"""Read the segments that another tiered storage wrote: imported rows name their location."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

from services.api.errors import CorruptSegmentError, RemoteResourceNotFoundError
from services.api.remote_storage_manager import IndexType
from services.api.segments import RemoteLogSegmentMetadata
from services.api.validation import within
from services.common.inflate import DamagedDataError, inflated_frame
from services.rsm.backends.protocol import CHUNK_BYTES
from services.rsm.fetch import last_position, require_in_order
from services.rsm.foreign_layouts import ForeignLayout, ObjectPart
from services.rsm.locations import Location, Locations
from services.rsm.transforms import joined


class ForeignReader:
    """Stream logs and indexes: there is nothing to verify or rebuild them with.

    Send no request before the first chunk is taken.
    """

    def __init__(self, locations: Locations) -> None:
        self._locations = locations

    def fetch_log(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int | None
    ) -> Iterator[bytes]:
        require_in_order(start_position, end_position)
        location, layout = self._place(metadata)
        with _naming(metadata, location):
            part = layout.log(location, metadata)
            last = last_position(metadata, part.size_bytes, start_position, end_position)
            if part.stored_bytes:
                yield from _opened(location, part, start_position, last)
            elif part.size_bytes:
                yield from location.backend.fetch(part.key, start_position, last)
            else:
                _require_there(location, part)

    def fetch_index(
        self, metadata: RemoteLogSegmentMetadata, index_type: IndexType, *, as_stored: bool = False
    ) -> Iterator[bytes]:
        del as_stored
        location, layout = self._place(metadata)
        with _naming(metadata, location):
            part = layout.index(location, metadata, index_type)
            if part.stored_bytes:
                yield from _opened(location, part, 0, part.size_bytes - 1)
            elif part.size_bytes:
                end = part.start + part.size_bytes - 1
                yield from location.backend.fetch(part.key, part.start, end)

    def _place(self, metadata: RemoteLogSegmentMetadata) -> tuple[Location, ForeignLayout]:
        with within("metadata"):
            return self._locations.foreign(metadata)


def _opened(location: Location, part: ObjectPart, start: int, last: int) -> Iterator[bytes]:
    """Yield the bytes of a compressed or encrypted file between two bytes, both inclusive."""
    first, behind = start // part.chunk_bytes, last // part.chunk_bytes + 1
    at, stored_at = first * part.chunk_bytes, part.start + sum(part.stored_bytes[:first])
    sizes = part.stored_bytes[first:behind]
    with closing(location.backend.fetch(part.key, stored_at, stored_at + sum(sizes) - 1)) as pieces:
        for stored in joined(pieces, sizes):
            size_bytes = min(part.chunk_bytes, part.size_bytes - at)
            try:
                opened = part.cipher.opened(stored) if part.cipher else stored
                chunk = inflated_frame(opened, size_bytes) if part.is_compressed else bytes(opened)
            except DamagedDataError as e:
                text = f"{part.key}: the chunk of bytes {at} to {at + size_bytes - 1}: {e}"
                raise CorruptSegmentError(text) from e
            begin, end = max(start - at, 0), min(last + 1 - at, size_bytes)
            for piece_at in range(begin, end, CHUNK_BYTES):
                yield chunk[piece_at : min(piece_at + CHUNK_BYTES, end)]
            at += size_bytes


@contextmanager
def _naming(metadata: RemoteLogSegmentMetadata, location: Location) -> Iterator[None]:
    """Add to an error about bytes their segment and location."""
    try:
        yield
    except (CorruptSegmentError, RemoteResourceNotFoundError) as e:
        segment = metadata.remote_log_segment_id
        raise type(e)(f"{segment}, imported: {e} (in {location})") from e


def _require_there(location: Location, part: ObjectPart) -> None:
    if location.backend.describe(part.key) is None:
        raise RemoteResourceNotFoundError(f"there is no {part.key}")
