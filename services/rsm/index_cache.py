"""Cache whole .indexes objects for some seconds: one request serves all indexes of a segment.

What for. A broker that starts to read a segment fetches its offset, time, transaction and other
indexes within moments. They lie one after another in one object, so the first fetch reads the whole
object, and the following ones are answered from memory.

How to use. `borrow` gives the object for the time of a block: all bytes, or None if the caller has
to read its own index by a ranged request instead. That is always possible and always correct, only
slower, so the cache gives up early: for an object that is empty or larger than MAX_OBJECT_BYTES, if
borrowed objects fill the memory, and if the store sends fewer bytes than expected, or too slowly
for a first byte to wait for all of them. The deleter calls `drop`.

`rebuilt` caches the indexes that a walk over the log built, because the store has lost or damaged
them (index_rebuild.py), or why it built none; readers of one copy share its walk.

Invariants.
* Cached objects have at most MAX_BYTES together, and so have those that are being read or borrowed:
  a slow client cannot hold more memory than that, however many indexes it requests. Rebuilt
  indexes have as much.
* A key names the location, the object and the custom metadata of its copy, whose attempt is unique:
  two copies never share an entry, and wrong metadata of one caller never reaches another.
* The cache verifies no object. Each reader verifies its own index as it would verify one of the
  store; if that fails, the object is dropped, and the next reader reads the store again.
* No object outlives TTL_S, and no rebuilt index REBUILT_TTL_S. Deletes by this RSM drop both at
  once, even while they are being read; after a delete by another RSM an index can be read until
  then.

Cancellation. Concurrent readers of one object share the request of the first. If that reader's call
is cancelled, the request ends, and one of the waiting readers sends it again. Crash: nothing is
lost, since memory is all there is. A dead store: the error goes to all readers that share the
request, is not cached, and the next reader asks the store again; what is cached is served until it
expires.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from threading import Lock

from cachetools import TTLCache
from prometheus_client import Counter

from services.api.errors import CorruptSegmentError
from services.api.remote_storage_manager import IndexType
from services.common.single_flight import SingleFlight
from services.rsm.deadline import require_wanted
from services.rsm.layout import CustomMetadata
from services.rsm.locations import Location
from services.rsm.transforms import Fetch

MIB = 1024 * 1024
MAX_BYTES = 16 * MIB
MAX_OBJECT_BYTES = 4 * MIB
TTL_S = 5.0
REBUILT_TTL_S = 60.0
ENTRY_OVERHEAD_BYTES = 2048

# A slower store delays the first byte too long: indexes are then read one by one.
_MAX_BODY_S = 5.0

INDEX_CACHE_HITS = Counter(
    "sediment_rsm_index_cache_hits",
    "Reads of indexes for which no request was sent to the store: another read of the segment "
    "had brought all its indexes within the last 5 seconds.",
)

_Key = tuple[int, str, bytes]
"""A location's number, the key of an .indexes object, and the custom metadata of its copy."""

Walked = Mapping[IndexType, bytes] | str
"""The indexes that a walk over a log built, or why it built none."""


class _UnreadableAsWholeError(Exception):
    """Raised if the object is shorter than expected, or its body takes too long."""


class IndexCache:
    """Lend whole .indexes objects, and cache them for TTL_S. Thread-safe."""

    def __init__(
        self,
        max_bytes: int = MAX_BYTES,
        max_object_bytes: int = MAX_OBJECT_BYTES,
        ttl_s: float = TTL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_object_bytes = max_object_bytes
        self._clock = clock
        self._lock = Lock()
        self._free_bytes = max_bytes
        cache: TTLCache[_Key, memoryview] = TTLCache(max_bytes, ttl_s, clock, _charged_bytes)
        self._objects: SingleFlight[_Key, memoryview] = SingleFlight(cache)
        walked: TTLCache[_Key, Walked] = TTLCache(max_bytes, REBUILT_TTL_S, clock, _walked_bytes)
        self._rebuilt: SingleFlight[_Key, Walked] = SingleFlight(walked)

    @contextmanager
    def borrow(
        self, location: Location, key: str, custom: CustomMetadata, fetch: Fetch
    ) -> Iterator[memoryview | None]:
        """Lend all indexes of a copy, which `fetch` reads, joined, inside the block.

        None if the caller must read its index from the store.

        Raises:
            RemoteStorageError: as StorageBackend.fetch.
        """
        size_bytes = sum(custom.index_sizes_bytes.values())
        if not 0 < size_bytes <= self._max_object_bytes or not self._reserve(size_bytes):
            yield None
            return
        try:
            yield self._content(_key(location, key, custom), fetch, size_bytes)
        except CorruptSegmentError:
            self.drop([key])
            raise
        finally:
            self._reserve(-size_bytes)

    def rebuilt(
        self,
        location: Location,
        key: str,
        custom: CustomMetadata,
        walk: Callable[[], Walked],
        wait_s: float,
    ) -> Walked:
        """Return what `walk` built for a copy, now or within REBUILT_TTL_S.

        Raises:
            RetriableRemoteStorageError: the walk of another reader takes longer than `wait_s`.
            RemoteStorageError: as `walk`; it is not cached.
        """
        walked, _ = self._rebuilt.run(_key(location, key, custom), walk, wait_s)
        return walked

    def drop(self, keys: Iterable[str]) -> None:
        """Drop objects that were deleted, also those that are being read or rebuilt."""
        gone = frozenset(keys)
        for flights in (self._objects, self._rebuilt):
            flights.discard([each for each in flights.current_keys() if each[1] in gone])

    def _content(self, key: _Key, fetch: Fetch, size_bytes: int) -> memoryview | None:
        def read() -> memoryview:
            return _whole(fetch, size_bytes, self._clock)

        try:
            content, was_read = self._objects.run(key, read)
        except _UnreadableAsWholeError:
            return None
        if not was_read:
            INDEX_CACHE_HITS.inc()
        return content

    def _reserve(self, size_bytes: int) -> bool:
        """Reserve memory for a borrowed object, or release it; False if there is not enough."""
        with self._lock:
            if size_bytes > self._free_bytes:
                return False
            self._free_bytes -= size_bytes
            return True


def _key(location: Location, key: str, custom: CustomMetadata) -> _Key:
    return location.location_id, key, custom.to_bytes()


def _walked_bytes(walked: Walked) -> int:
    size_bytes = len(walked) if isinstance(walked, str) else sum(map(len, walked.values()))
    return ENTRY_OVERHEAD_BYTES + size_bytes


def _charged_bytes(content: memoryview) -> int:
    return len(content) + ENTRY_OVERHEAD_BYTES


def _whole(fetch: Fetch, size_bytes: int, clock: Callable[[], float]) -> memoryview:
    content, filled, end_s = bytearray(size_bytes), 0, 0.0
    try:
        with closing(fetch(0, size_bytes - 1)) as pieces:
            for piece in pieces:
                content[filled : filled + len(piece)] = piece
                filled += len(piece)
                end_s = end_s or clock() + _MAX_BODY_S
                if filled < size_bytes:
                    require_wanted()
                    if clock() > end_s:
                        raise _UnreadableAsWholeError
    except CorruptSegmentError as e:
        raise _UnreadableAsWholeError from e
    return memoryview(content)
