"""Compute digests of files as their bytes pass, and cache the digests of verified reads."""

import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from functools import lru_cache, partial, reduce
from math import inf
from threading import Semaphore

from cachetools import TLRUCache
from crc32c import crc32c

from services.api.errors import CorruptSegmentError, RemoteResourceNotFoundError
from services.api.remote_storage_manager import DIGEST_CHUNK_BYTES, FileDigest, IndexType, LogDigest
from services.common.single_flight import SingleFlight
from services.common.threads import started_pool
from services.rsm.keys import KEEP_S
from services.rsm.layout import CustomMetadata, Manifest, SegmentKeys
from services.rsm.locations import Location
from services.rsm.transforms import TransformedCopy

MISSING_S = 10.0
"""How long a missing or malformed manifest is not read again by the reads of its segment."""

ENTRY_OVERHEAD_BYTES = 2048

MANIFEST_THREADS = 4
"""How many manifests may be read beside the bytes that they verify; others are read after them."""

_POLYNOMIAL = 0x82F63B78
_ONE = 1 << 31
_X8 = _ONE >> 8
_32_BITS = 0xFFFFFFFF

_Key = tuple[int, str, bytes]
"""A location's number, the stem of a segment's keys, and the custom metadata of its copy."""

NoManifest = RemoteResourceNotFoundError | CorruptSegmentError


def joined_crc32c(pieces: Iterable[tuple[int, int]]) -> int:
    """Return the crc32c of joined pieces, from the crc32c and the size in bytes of each."""
    return reduce(lambda crc, piece: _times(_shift(piece[1]), crc) ^ piece[0], pieces, 0)


@lru_cache(maxsize=16)
def _shift(size_bytes: int) -> int:
    """Return the factor that `size_bytes` following bytes apply to a crc.

    Cached, since most pieces have one size.
    """
    power, square = _ONE, _X8
    while size_bytes:
        if size_bytes & 1:
            power = _times(power, square)
        square = _times(square, square)
        size_bytes >>= 1
    return power


def _times(a: int, b: int) -> int:
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = a << 1 & _32_BITS
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


class RunningDigest:
    """Digest a file's bytes in order, in pieces of any size; read each byte once."""

    def __init__(self) -> None:
        self._size_bytes = 0
        self._chunks: list[int] = []

    def update(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            filled = self._size_bytes % DIGEST_CHUNK_BYTES
            piece = view[: DIGEST_CHUNK_BYTES - filled]
            if not filled:
                self._chunks.append(0)
            self._chunks[-1] = crc32c(piece, self._chunks[-1])
            self._size_bytes += len(piece)
            view = view[len(piece) :]

    @property
    def whole(self) -> FileDigest:
        return FileDigest(self._size_bytes, joined_crc32c(self._pieces(0, self._size_bytes)))

    @property
    def log(self) -> LogDigest:
        return LogDigest(self.whole, tuple(self._chunks))

    def crc32c_of(self, offset: int, size_bytes: int) -> int | None:
        """Return the crc32c of `size_bytes` bytes from byte `offset` on.

        None if not all of them have passed, or if they are not made of whole chunks.
        """
        end = offset + size_bytes
        has_passed = end <= self._size_bytes
        is_whole = offset % DIGEST_CHUNK_BYTES == 0 and (
            end % DIGEST_CHUNK_BYTES == 0 or end == self._size_bytes
        )
        return joined_crc32c(self._pieces(offset, end)) if has_passed and is_whole else None

    def _pieces(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the crc32c and the size of each chunk between two chunk boundaries."""
        for at in range(start, end, DIGEST_CHUNK_BYTES):
            size_bytes = min(DIGEST_CHUNK_BYTES, end - at)
            yield self._chunks[at // DIGEST_CHUNK_BYTES], size_bytes


@dataclass(frozen=True, slots=True)
class SegmentDigests:
    """The digests of one copy, from its manifest.

    Attributes:
        log_chunk_crc32c: of each DIGEST_CHUNK_BYTES of the log, the last shorter.
        index_crc32c: of each index file that exists.
        transformed: reads the objects, if they do not have the files' own bytes.
    """

    log_chunk_crc32c: "array[int]"
    index_crc32c: Mapping[IndexType, int]
    transformed: TransformedCopy | None = None

    @classmethod
    def of(cls, manifest: Manifest, location: Location) -> "SegmentDigests":
        """Return a copy's digests; raises as Location.data_key if the copy is encrypted."""
        form, key = manifest.stored, None
        if form is not None and form.is_encrypted:
            key = location.data_key(manifest)
        return cls(
            array("I", manifest.log.chunk_crc32c),
            {kind: digest.crc32c for kind, digest in manifest.indexes.items()},
            None if form is None else TransformedCopy(manifest, form, key),
        )


class DigestCache:
    """Cache the digests of copies; evict the least recently used. Thread-safe.

    Concurrent readers that miss the same digests share one read of the manifest. A missing or wrong
    manifest is cached for MISSING_S.
    """

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        cache: TLRUCache[_Key, SegmentDigests | NoManifest] = TLRUCache(
            max_bytes, _expiry_s, clock, _charged_bytes
        )
        self._flights: SingleFlight[_Key, SegmentDigests | NoManifest] = SingleFlight(cache)
        self._threads = started_pool(MANIFEST_THREADS, "manifest")
        self._idle = Semaphore(MANIFEST_THREADS)

    def close(self) -> None:
        """Stop the threads that read manifests ahead; `begin` must not be called again."""
        self._threads.shutdown(wait=False)

    def begin(
        self, location: Location, keys: SegmentKeys, custom: CustomMetadata
    ) -> Callable[[], SegmentDigests]:
        """Return `get`, which already runs if the digests are not cached and a thread is idle."""
        get = partial(self.get, location, keys, custom)
        if self._flights.cached(_key(location, keys, custom)) or not self._idle.acquire(False):
            return get
        running = self._threads.submit(copy_context().run, get)
        running.add_done_callback(lambda _: self._idle.release())
        return running.result

    def get(self, location: Location, keys: SegmentKeys, custom: CustomMetadata) -> SegmentDigests:
        """Return the digests of the copy that `custom` describes.

        Raises:
            RemoteResourceNotFoundError: there is no manifest.
            CorruptSegmentError: the object under its key is something else, or another copy's
                manifest.
        """

        def read() -> SegmentDigests | NoManifest:
            try:
                return SegmentDigests.of(location.read_manifest_of(keys, custom), location)
            except (RemoteResourceNotFoundError, CorruptSegmentError) as e:
                return e

        digests, _ = self._flights.run(_key(location, keys, custom), read)
        if isinstance(digests, NoManifest):
            raise type(digests)(str(digests))
        return digests


def _key(location: Location, keys: SegmentKeys, custom: CustomMetadata) -> _Key:
    return location.location_id, keys.stem, custom.to_bytes()


def _expiry_s(_: _Key, digests: SegmentDigests | NoManifest, now_s: float) -> float:
    if isinstance(digests, NoManifest):
        return now_s + MISSING_S
    is_encrypted = digests.transformed is not None and digests.transformed.is_encrypted
    return now_s + KEEP_S if is_encrypted else inf


def _charged_bytes(digests: SegmentDigests | NoManifest) -> int:
    if isinstance(digests, NoManifest):
        return ENTRY_OVERHEAD_BYTES
    tables_bytes = 0 if digests.transformed is None else digests.transformed.size_bytes
    return ENTRY_OVERHEAD_BYTES + 4 * len(digests.log_chunk_crc32c) + tables_bytes
