"""Read the segments that another tiered storage wrote: imported rows name their location."""

from collections.abc import Iterator
from contextlib import contextmanager

from services.api.errors import CorruptSegmentError, RemoteResourceNotFoundError
from services.api.remote_storage_manager import IndexType
from services.api.segments import RemoteLogSegmentMetadata
from services.api.validation import within
from services.rsm.fetch import last_position, require_in_order
from services.rsm.foreign_layouts import ForeignLayout, ObjectPart
from services.rsm.locations import Location, Locations


class ForeignReader:
    """Stream logs and indexes as they are stored: there is nothing to verify or rebuild them with.

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
            if part.size_bytes:
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
            if part.size_bytes:
                end = part.start + part.size_bytes - 1
                yield from location.backend.fetch(part.key, part.start, end)

    def _place(self, metadata: RemoteLogSegmentMetadata) -> tuple[Location, ForeignLayout]:
        with within("metadata"):
            return self._locations.foreign(metadata)


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
