"""Read logs and indexes: one ranged GET each, of objects that the custom metadata names."""

from collections.abc import Iterator

from services.api.errors import InvalidRangeError, RemoteResourceNotFoundError
from services.api.remote_storage_manager import IndexType
from services.api.segments import RemoteLogSegmentMetadata
from services.api.validation import require
from services.rsm.backends.protocol import StorageBackend
from services.rsm.locations import Locations
from services.rsm.verification import ReadVerification, has_whole_chunk


class SegmentReader:
    """fetch_log_segment and fetch_index. Nothing happens before the first chunk is taken."""

    def __init__(self, locations: Locations, verification: ReadVerification) -> None:
        self._locations = locations
        self._verification = verification

    def fetch_log(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int | None
    ) -> Iterator[bytes]:
        require(start_position >= 0, "start_position", f"must not be below 0: {start_position}")
        if end_position is not None:
            in_order = end_position >= start_position
            require(in_order, "end_position", f"{end_position} is below {start_position}")
        location, found = self._locations.find(metadata)
        keys, size = location.keys(metadata), found.log_size_bytes
        if size == 0 and start_position == 0:
            _require_there(location.backend, keys.log(found.attempt), size)
            return
        if start_position >= size:
            segment = metadata.remote_log_segment_id
            raise InvalidRangeError(f"{segment} has {size} bytes, none at {start_position}")
        last = size - 1 if end_position is None else min(end_position, size - 1)
        pieces = location.backend.fetch(keys.log(found.attempt), start_position, last)
        if has_whole_chunk(start_position, last, size) and self._verification.chooses():
            verification = self._verification.of(location, metadata, found)
            pieces = verification.log(pieces, start_position)
        yield from pieces

    def fetch_index(
        self, metadata: RemoteLogSegmentMetadata, index_type: IndexType
    ) -> Iterator[bytes]:
        location, found = self._locations.find(metadata)
        size = found.index_sizes_bytes.get(index_type)
        if size is None:
            segment = metadata.remote_log_segment_id
            raise RemoteResourceNotFoundError(f"{segment} has no {index_type.name} index")
        key = location.keys(metadata).indexes(found.attempt)
        if size == 0:
            _require_there(location.backend, key, sum(found.index_sizes_bytes.values()))
            return
        start = found.index_position(index_type)
        pieces = location.backend.fetch(key, start, start + size - 1)
        if self._verification.chooses():
            pieces = self._verification.of(location, metadata, found).index(pieces, index_type)
        yield from pieces


def _require_there(backend: StorageBackend, key: str, size_bytes: int) -> None:
    """Ask for an object of which nothing is to be read: of a segment that is gone no file is empty.

    Raises:
        RemoteResourceNotFoundError: there is no such object.
    """
    if size_bytes:
        b"".join(backend.fetch(key, 0, 0))
    else:
        backend.get(key)
