"""Reads: one ranged GET each, of objects that the custom metadata names."""

from collections.abc import Iterator

from services.api.errors import InvalidRangeError, RemoteResourceNotFoundError
from services.api.remote_storage_manager import IndexType
from services.api.segments import RemoteLogSegmentMetadata
from services.api.validation import require
from services.rsm.custom_metadata import CustomMetadata
from services.rsm.location import Location


class SegmentReader:
    """fetch_log_segment and fetch_index. Nothing happens before the first chunk is taken."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._backend = location.backend

    def fetch_log(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int | None
    ) -> Iterator[bytes]:
        require(start_position >= 0, "start_position", f"must not be below 0: {start_position}")
        if end_position is not None:
            in_order = end_position >= start_position
            require(in_order, "end_position", f"{end_position} is below {start_position}")
        found = self._find(metadata)
        key, size = self._location.keys(metadata).log(found.attempt), found.log_size_bytes
        if size == 0 and start_position == 0:
            self._backend.get(key)  # An empty log, too, must be there.
        elif start_position >= size:
            segment = metadata.remote_log_segment_id
            raise InvalidRangeError(f"{segment} has {size} bytes, none at {start_position}")
        else:
            last = size - 1 if end_position is None else min(end_position, size - 1)
            yield from self._backend.fetch(key, start_position, last)

    def fetch_index(
        self, metadata: RemoteLogSegmentMetadata, index_type: IndexType
    ) -> Iterator[bytes]:
        found = self._find(metadata)
        size = found.index_sizes_bytes.get(index_type)
        if size is None:
            segment = metadata.remote_log_segment_id
            raise RemoteResourceNotFoundError(f"{segment} has no {index_type.name} index")
        if size > 0:
            key = self._location.keys(metadata).indexes(found.attempt)
            start = found.index_position(index_type)
            yield from self._backend.fetch(key, start, start + size - 1)

    def _find(self, metadata: RemoteLogSegmentMetadata) -> CustomMetadata:
        """Where the bytes are; asks the manifest only where the caller does not know."""
        known = self._location.custom_metadata(metadata)
        if known is not None:
            return known
        manifest = self._location.read_manifest(self._location.keys(metadata))
        return manifest.custom_metadata(self._location.location_id)
