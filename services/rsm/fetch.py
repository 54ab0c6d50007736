"""Read logs by one ranged GET each, and all indexes of a segment by one GET together."""

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager

from services.api.errors import (
    CorruptSegmentError,
    InvalidRangeError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from services.api.remote_storage_manager import IndexType
from services.api.segments import RemoteLogSegmentMetadata
from services.api.validation import require, within
from services.rsm.backends.protocol import CHUNK_BYTES, StorageBackend
from services.rsm.deadline import ByteRate
from services.rsm.index_cache import IndexCache
from services.rsm.index_rebuild import IndexRebuild
from services.rsm.layout import CustomMetadata
from services.rsm.locations import Location, Locations
from services.rsm.verification import ReadVerification

_ABOUT_BYTES = (CorruptSegmentError, RemoteResourceNotFoundError)


class SegmentReader:
    """Stream logs and indexes; send no request before the first chunk is taken."""

    def __init__(
        self,
        locations: Locations,
        verification: ReadVerification,
        cache: IndexCache,
        rate: ByteRate,
    ) -> None:
        """Set up reads; `rate` limits those of logs from which indexes are rebuilt."""
        self._locations = locations
        self._verification = verification
        self._cache = cache
        self._rebuild = IndexRebuild(locations, verification, cache, rate)

    def fetch_log(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int | None
    ) -> Iterator[bytes]:
        require_in_order(start_position, end_position)
        with within("metadata"):
            location, custom = self._locations.find(metadata)
        key, size = location.keys(metadata).log(custom.attempt), custom.log_size_bytes
        last = last_position(metadata, size, start_position, end_position)
        with _naming(metadata, location, key, start_position, last):
            if not size:
                _require_there(location.backend, key, size)
                return
            verification = self._verification.of(location, metadata, custom)
            if self._verification.chooses_log():
                yield from verification.log(verification.fetch_log, start_position, last)
            else:
                yield from verification.fetch_log(start_position, last)

    def fetch_index(
        self, metadata: RemoteLogSegmentMetadata, index_type: IndexType, *, as_stored: bool = False
    ) -> Iterator[bytes]:
        with within("metadata"):
            location, custom = self._locations.find(metadata)
        size = custom.index_sizes_bytes.get(index_type)
        if size is None:
            segment = metadata.remote_log_segment_id
            raise RemoteResourceNotFoundError(f"{segment} has no {index_type.name} index")
        key = location.keys(metadata).indexes(custom.attempt)
        start = custom.index_position(index_type)
        with (
            _naming(metadata, location, key, start, start + size - 1),
            closing(self._stored_index(metadata, location, custom, index_type)) as stored,
        ):
            try:
                # It comes when all are verified.
                first = next(stored, b"")
            except _ABOUT_BYTES as e:
                if as_stored:
                    raise
                index = self._rebuild.rebuilt(metadata, location, custom, index_type, e)
                yield from _cut(memoryview(index), 0, len(index))
                return
            if first:
                yield first
            yield from stored

    def _stored_index(
        self,
        metadata: RemoteLogSegmentMetadata,
        location: Location,
        custom: CustomMetadata,
        kind: IndexType,
    ) -> Generator[bytes, None, None]:
        key = location.keys(metadata).indexes(custom.attempt)
        start, size = custom.index_position(kind), custom.index_sizes_bytes[kind]
        verification = self._verification.of(location, metadata, custom)
        with self._cache.borrow(location, key, custom, verification.fetch_indexes) as indexes:
            if size == 0:
                if indexes is None:
                    _require_there(location.backend, key, sum(custom.index_sizes_bytes.values()))
                return
            if indexes is None:
                pieces = verification.fetch_indexes(start, start + size - 1)
            else:
                pieces = _cut(indexes, start, size)
            yield from verification.index(pieces, kind)


def require_in_order(start_position: int, end_position: int | None) -> None:
    """Check the positions between which a log is to be read."""
    require(start_position >= 0, "start_position", f"must not be below 0: {start_position}")
    if end_position is not None:
        in_order = end_position >= start_position
        require(in_order, "end_position", f"{end_position} is below {start_position}")


def last_position(
    metadata: RemoteLogSegmentMetadata, size: int, start_position: int, end_position: int | None
) -> int:
    """Return the last position to read of a log of `size` bytes; -1 if it is empty.

    Raises:
        InvalidRangeError: there is no byte at `start_position`.
    """
    if start_position >= max(size, 1):
        segment = metadata.remote_log_segment_id
        raise InvalidRangeError(f"{segment} has {size} bytes, none at {start_position}")
    return size - 1 if end_position is None else min(end_position, size - 1)


def _cut(content: memoryview, start: int, size_bytes: int) -> Generator[bytes, None, None]:
    """Yield a part of `content` in chunks, as a store does."""
    end = start + size_bytes
    for at in range(start, end, CHUNK_BYTES):
        yield bytes(content[at : min(at + CHUNK_BYTES, end)])


@contextmanager
def _naming(
    metadata: RemoteLogSegmentMetadata, location: Location, key: str, first: int, last: int
) -> Iterator[None]:
    """Add to an error about bytes their segment, range and object, and the next command to run."""
    try:
        yield
    except RemoteStorageError as e:
        if not (isinstance(e, _ABOUT_BYTES) or type(e) is RemoteStorageError):
            raise
        segment = metadata.remote_log_segment_id
        read = f"bytes {first} to {last}" if last >= first else "an empty file"
        raise type(e)(
            f"{segment}, offsets {metadata.start_offset} to {metadata.end_offset}: {e} (reading "
            f"{read} of {key} in {location}); verify the topic's segments with `sediment scrub "
            f"--topic {segment.topic_id_partition.topic}`"
        ) from e


def _require_there(backend: StorageBackend, key: str, size_bytes: int) -> None:
    """Check that the object of an empty file exists: if not, the segment is gone.

    Raises:
        RemoteResourceNotFoundError: there is no such object.
    """
    if size_bytes:
        b"".join(backend.fetch(key, 0, 0))
    else:
        backend.get(key)
