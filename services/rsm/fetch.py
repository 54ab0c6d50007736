"""Read logs by one ranged GET each, and all indexes of a segment by one GET together."""

import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from functools import partial
from threading import Lock, Timer

from prometheus_client import Counter

from services.api.calls import current_call
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
from services.rsm.deadline import require_wanted
from services.rsm.layout import CustomMetadata
from services.rsm.locations import Location, Locations
from services.rsm.verification import ReadVerification

_MIB = 1024 * 1024
INDEX_CACHE_BYTES = 16 * _MIB
MAX_CACHED_OBJECT_BYTES = 4 * _MIB
KEPT_S = 5.0
"""How long indexes may be read from memory, counted from before the request for them."""

ENTRY_OVERHEAD_BYTES = 2048

# A slower store delays the first byte too long: indexes are then read one by one.
_MAX_BODY_S = 5.0

INDEX_CACHE_HITS = Counter(
    "sediment_rsm_index_cache_hits",
    "Reads of indexes for which no request was sent to the store: another read of the segment "
    "had brought all its indexes within the last 5 seconds.",
)


class SegmentReader:
    """Stream logs and indexes; send no request before the first chunk is taken."""

    def __init__(
        self, locations: Locations, verification: ReadVerification, cache: "IndexCache"
    ) -> None:
        self._locations = locations
        self._verification = verification
        self._cache = cache

    def fetch_log(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int | None
    ) -> Iterator[bytes]:
        require(start_position >= 0, "start_position", f"must not be below 0: {start_position}")
        if end_position is not None:
            in_order = end_position >= start_position
            require(in_order, "end_position", f"{end_position} is below {start_position}")
        with within("metadata"):
            location, found = self._locations.find(metadata)
        key, size = location.keys(metadata).log(found.attempt), found.log_size_bytes
        if start_position >= max(size, 1):
            segment = metadata.remote_log_segment_id
            raise InvalidRangeError(f"{segment} has {size} bytes, none at {start_position}")
        last = size - 1 if end_position is None else min(end_position, size - 1)
        with _naming(metadata, location, key, start_position, last):
            if not size:
                _require_there(location.backend, key, size)
                return
            fetch = partial(location.backend.fetch, key)
            if self._verification.chooses_log():
                verification = self._verification.of(location, metadata, found)
                yield from verification.log(fetch, start_position, last)
            else:
                yield from fetch(start_position, last)

    def fetch_index(
        self, metadata: RemoteLogSegmentMetadata, index_type: IndexType
    ) -> Iterator[bytes]:
        with within("metadata"):
            location, found = self._locations.find(metadata)
        size = found.index_sizes_bytes.get(index_type)
        if size is None:
            segment = metadata.remote_log_segment_id
            raise RemoteResourceNotFoundError(f"{segment} has no {index_type.name} index")
        key, start = (
            location.keys(metadata).indexes(found.attempt),
            found.index_position(index_type),
        )
        object_bytes = sum(found.index_sizes_bytes.values())
        with (
            _naming(metadata, location, key, start, start + size - 1),
            self._cache.lent(location, key, found) as indexes,
        ):
            if size == 0:
                if indexes is None:
                    _require_there(location.backend, key, object_bytes)
                return
            if indexes is None:
                pieces = location.backend.fetch(key, start, start + size - 1)
            else:
                pieces = _cut(indexes, start, size)
            verification = self._verification.of(location, metadata, found)
            yield from verification.index(pieces, index_type)


_Key = tuple[int, str, bytes]
"""A location's number, the key of an .indexes object, and the custom metadata of its copy."""


class _IndexObject:
    """One .indexes object. It counts until the cache drops it and its last reader leaves."""

    def __init__(self, key: _Key, size_bytes: int, expires_s: float) -> None:
        self.key = key
        self.counted_bytes = size_bytes + ENTRY_OVERHEAD_BYTES
        self.expires_s = expires_s
        self.readers = 0
        self.is_cached = True
        self.content: Future[memoryview | None] = Future()
        """None: the object cannot be read as a whole."""


class _ReaderLeftError(Exception):
    """Raised to the waiting readers if the reader that sent the request leaves before its end."""


class IndexCache:
    """Keep whole .indexes objects for KEPT_S; evict the least recently used. Thread-safe.

    Concurrent readers that miss the same object cause one request. If the reader that sends it
    leaves, another one sends it again. The limit also counts objects that are being read from the
    store, and those whose readers are slow. A reader that finds no room reads its index only.

    The cache verifies nothing: each reader verifies what it reads, and an object that failed is
    dropped.
    """

    def __init__(
        self,
        max_bytes: int = INDEX_CACHE_BYTES,
        max_object_bytes: int = MAX_CACHED_OBJECT_BYTES,
        kept_s: float = KEPT_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_bytes = max_bytes
        self._max_object_bytes = max_object_bytes
        self._kept_s = kept_s
        self._now = now
        self._lock = Lock()
        self._cached: OrderedDict[_Key, _IndexObject] = OrderedDict()
        self._counted_bytes = 0
        self._timer: Timer | None = None
        self._is_closed = False

    @property
    def counted_bytes(self) -> int:
        """Return the bytes that count towards the limit."""
        return self._counted_bytes

    @contextmanager
    def lent(
        self, location: Location, key: str, found: CustomMetadata
    ) -> Iterator[memoryview | None]:
        """Lend the object with all indexes of a copy inside the block.

        None if the caller must read its index from the store: the object is empty, too large,
        shorter than it was, too slow to read, or there is no room.

        Raises:
            RemoteStorageError: as StorageBackend.fetch.
        """
        lent = self._acquire(location, key, found)
        if lent is None:
            yield None
            return
        try:
            yield lent.content.result()
        except CorruptSegmentError:
            with self._lock:
                self._drop(lent)
            raise
        finally:
            self._release(lent)

    def drop(self, keys: Iterable[str]) -> None:
        """Drop objects that were deleted, also those that are being read from the store."""
        gone = frozenset(keys)
        with self._lock:
            for each in list(self._cached.values()):
                if each.key[1] in gone:
                    self._drop(each)

    def close(self) -> None:
        """Drop everything and keep nothing more. Idempotent."""
        with self._lock:
            self._is_closed = True
            if self._timer is not None:
                self._timer.cancel()
            for each in list(self._cached.values()):
                self._drop(each)

    def _acquire(self, location: Location, key: str, found: CustomMetadata) -> _IndexObject | None:
        """Return an object whose content is there, or None as `lent`; `_release` it afterwards."""
        size_bytes = sum(found.index_sizes_bytes.values())
        if not 0 < size_bytes <= self._max_object_bytes:
            return None
        cache_key = (location.location_id, key, found.to_bytes())
        while True:
            with self._lock:
                wanted = self._cached.get(cache_key)
                is_hit = wanted is not None and self._now() < wanted.expires_s
                if not is_hit:
                    wanted = self._add(cache_key, size_bytes)
                if wanted is None:
                    return None
                wanted.readers += 1
                self._cached.move_to_end(cache_key)
            try:
                if not is_hit:
                    self._read(wanted, location.backend, size_bytes)
                elif wanted.content.result() is not None:
                    INDEX_CACHE_HITS.inc()
                return wanted
            except _ReaderLeftError:
                self._release(wanted)
            except BaseException:
                self._release(wanted)
                raise

    def _add(self, key: _Key, size_bytes: int) -> _IndexObject | None:
        """Make room for an object that is to be read; None if there is none."""
        if (expired := self._cached.get(key)) is not None:
            self._drop(expired)
        new = _IndexObject(key, size_bytes, self._now() + self._kept_s)
        for each in list(self._cached.values()):
            if self._counted_bytes + new.counted_bytes <= self._max_bytes:
                break
            if not each.readers:
                self._drop(each)
        if self._is_closed or self._counted_bytes + new.counted_bytes > self._max_bytes:
            return None
        if not self._start_timer(self._kept_s):
            return None
        self._cached[key] = new
        self._counted_bytes += new.counted_bytes
        return new

    def _read(self, wanted: _IndexObject, backend: StorageBackend, size_bytes: int) -> None:
        try:
            content = _whole(backend, wanted.key[1], size_bytes, self._now)
        except BaseException as e:
            with self._lock:
                self._drop(wanted)
            wanted.content.set_exception(e if current_call().is_active() else _ReaderLeftError())
            raise
        if content is None:
            with self._lock:
                self._drop(wanted)
        wanted.content.set_result(content)

    def _release(self, lent: _IndexObject) -> None:
        with self._lock:
            lent.readers -= 1
            if not (lent.readers or lent.is_cached):
                self._counted_bytes -= lent.counted_bytes

    def _drop(self, dropped: _IndexObject) -> None:
        if dropped.is_cached:
            dropped.is_cached = False
            del self._cached[dropped.key]
            if not dropped.readers:
                self._counted_bytes -= dropped.counted_bytes

    def _start_timer(self, after_s: float) -> bool:
        """Drop what has expired after some seconds, even if no call comes.

        Return False if no thread can be started for that.
        """
        if self._timer is None:
            timer = Timer(after_s, self._drop_expired)
            timer.name, timer.daemon = "rsm-index-cache", True
            try:
                timer.start()
            except RuntimeError:
                return False
            self._timer = timer
        return True

    def _drop_expired(self) -> None:
        with self._lock:
            self._timer = None
            now_s = self._now()
            for each in list(self._cached.values()):
                if each.expires_s <= now_s:
                    self._drop(each)
            if self._cached:
                next_s = min(each.expires_s for each in self._cached.values())
                if not self._start_timer(next_s - now_s):
                    for each in list(self._cached.values()):
                        self._drop(each)


def _whole(
    backend: StorageBackend, key: str, size_bytes: int, now: Callable[[], float]
) -> memoryview | None:
    """Read a whole object; None if it is shorter than it was, or if its body takes too long."""
    content, filled, end_s = bytearray(size_bytes), 0, 0.0
    try:
        with closing(backend.fetch(key, 0, size_bytes - 1)) as pieces:
            for piece in pieces:
                content[filled : filled + len(piece)] = piece
                filled += len(piece)
                end_s = end_s or now() + _MAX_BODY_S
                if filled < size_bytes:
                    require_wanted()
                    if now() > end_s:
                        return None
    except CorruptSegmentError:
        return None
    return memoryview(content)


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


_ABOUT_BYTES = (CorruptSegmentError, RemoteResourceNotFoundError)


def _require_there(backend: StorageBackend, key: str, size_bytes: int) -> None:
    """Check that the object of an empty file exists: if not, the segment is gone.

    Raises:
        RemoteResourceNotFoundError: there is no such object.
    """
    if size_bytes:
        b"".join(backend.fetch(key, 0, 0))
    else:
        backend.get(key)
