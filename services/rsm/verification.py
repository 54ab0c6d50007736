"""Verify fetched bytes against the digests of their copy."""

import itertools
from collections import deque
from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial
from typing import Literal

from crc32c import crc32c
from prometheus_client import Counter

from services.api.errors import CorruptSegmentError, RemoteResourceNotFoundError
from services.api.remote_storage_manager import DIGEST_CHUNK_BYTES, IndexType
from services.api.segments import RemoteLogSegmentMetadata
from services.rsm.digests import DigestCache, SegmentDigests
from services.rsm.layout import CustomMetadata
from services.rsm.locations import Location
from services.rsm.transforms import Fetch, TransformedCopy

VerifyReads = Literal["off", "sampled", "always"]
SAMPLE_EVERY = 16

VERIFIED = Counter(
    "sediment_rsm_verified_parts",
    "Chunks of logs and whole indexes whose bytes RSM compared with their copy's as they were "
    "read, by result: equal, corrupt (they differ, or the copy's manifest is lost or damaged).",
    ("result",),
)


class ReadVerification:
    """Choose the reads to verify, and verify their bytes as they pass. Thread-safe.

    An index is always verified. A log is verified chunk by chunk: the chunks around a range are
    read whole, and no byte of one is served before the whole has matched. The manifest is read
    while the first chunk or index comes, by threads that `close` stops.
    """

    def __init__(self, verify: VerifyReads, cache_bytes: int) -> None:
        """Set how many reads to verify.

        With "sampled" every SAMPLE_EVERY-th read of a log is verified.
        """
        self._every = {"off": 0, "sampled": SAMPLE_EVERY, "always": 1}[verify]
        self._reads = itertools.count(1)
        self._cache = DigestCache(cache_bytes)
        self.close = self._cache.close

    def chooses_log(self) -> bool:
        """Return whether to verify the next read of a log."""
        return self._every > 0 and next(self._reads) % self._every == 0

    def of(
        self,
        location: Location,
        metadata: RemoteLogSegmentMetadata,
        custom: CustomMetadata,
    ) -> "SegmentVerification":
        """Return the verification of one read of the objects that `custom` describes."""
        return SegmentVerification(self._cache, location, metadata, custom)


class SegmentVerification:
    """Verify one read; it fails if its manifest is missing or belongs to another copy."""

    def __init__(
        self,
        cache: DigestCache,
        location: Location,
        metadata: RemoteLogSegmentMetadata,
        custom: CustomMetadata,
    ) -> None:
        self._cache = cache
        self._location = location
        self._keys = location.keys(metadata)
        self._custom = custom
        self._reading: Callable[[], SegmentDigests] | None = None
        self._digests: SegmentDigests | None = None

    def fetch_log(self, start: int, last: int) -> Generator[bytes, None, None]:
        """Yield the bytes of the log between two bytes, both inclusive, as the store has them.

        Those of a transformed copy are read with its manifest, and raise as `log`.
        """
        fetch: Fetch = partial(self._location.backend.fetch, self._keys.log(self._custom.attempt))
        if self._custom.transformed:
            fetch = self._transformed(fetch).log(fetch)
        yield from fetch(start, last)

    def fetch_indexes(self, start: int, last: int) -> Generator[bytes, None, None]:
        """Yield the bytes of the joined index files, as fetch_log."""
        key = self._keys.indexes(self._custom.attempt)
        fetch: Fetch = partial(self._location.backend.fetch, key)
        if self._custom.transformed:
            fetch = self._transformed(fetch).indexes(fetch)
        yield from fetch(start, last)

    def _transformed(self, fetch: Fetch) -> TransformedCopy:
        try:
            found = self.digests().transformed
        except CorruptSegmentError:
            # A segment that was deleted has neither manifest nor objects.
            b"".join(fetch(0, 0))
            raise
        assert found is not None  # Else it is not the manifest of this custom metadata.
        return found

    def log(self, fetch: Fetch, start: int, last: int) -> Generator[bytes, None, None]:
        """Yield the bytes of the log from `start` to `last`, both inclusive.

        Raises:
            CorruptSegmentError: before the first byte of a chunk that differs from its copy.
        """
        self._begin()
        size = self._custom.log_size_bytes
        first_chunk = start // DIGEST_CHUNK_BYTES * DIGEST_CHUNK_BYTES
        end = min((last // DIGEST_CHUNK_BYTES + 1) * DIGEST_CHUNK_BYTES, size)

        def check(number: int, crc: int) -> None:
            first = number * DIGEST_CHUNK_BYTES
            last = min(first + DIGEST_CHUNK_BYTES, size) - 1
            what = f"chunk {number} of the log, bytes {first} to {last}"
            _require_equal(what, crc, self.digests().log_chunk_crc32c[number])

        chunks = _checked(fetch(first_chunk, end - 1), first_chunk, size, DIGEST_CHUNK_BYTES, check)
        return _cut(chunks, start - first_chunk, last + 1 - first_chunk)

    def index(
        self, pieces: Generator[bytes, None, None], kind: IndexType
    ) -> Generator[bytes, None, None]:
        """Yield `pieces` of a whole index file; raises as `log`."""
        self._begin()
        size = self._custom.index_sizes_bytes[kind]

        def check(number: int, crc: int) -> None:
            what = f"{kind.name} index, bytes 0 to {size - 1}"
            _require_equal(what, crc, self.digests().index_crc32c[kind])

        return _checked(pieces, 0, size, size, check)

    def digests(self) -> SegmentDigests:
        """Return the digests of the copy, read once for the whole read.

        Raises:
            CorruptSegmentError: the copy has no manifest, or a damaged one.
        """
        if self._digests is None:
            try:
                self._digests = self._begin()()
            except (RemoteResourceNotFoundError, CorruptSegmentError) as e:
                VERIFIED.labels("corrupt").inc()
                raise CorruptSegmentError(f"the bytes cannot be verified: {e}") from e
        return self._digests

    def _begin(self) -> Callable[[], SegmentDigests]:
        """Begin to read the manifest, which then comes beside the bytes; return what waits."""
        if self._reading is None:
            self._reading = self._cache.begin(self._location, self._keys, self._custom)
        return self._reading


def _require_equal(what: str, crc: int, expected: int) -> None:
    VERIFIED.labels("equal" if crc == expected else "corrupt").inc()
    if crc != expected:
        raise CorruptSegmentError(f"{what}: crc32c is {crc:08x}, was {expected:08x} when copied")


def _checked(
    pieces: Generator[bytes, None, None],
    start: int,
    size: int,
    section_bytes: int,
    check: Callable[[int, int], None],
) -> Generator[bytes, None, None]:
    """Yield `pieces` of a file of `size` bytes from `start` on, where a section begins, unchanged.

    Calls `check(number, crc32c)` for each section before it yields a piece with bytes of it.
    """
    position, crc = start, 0
    pending: deque[bytes] = deque()
    pending_from = verified = start
    with closing(pieces):
        for piece in pieces:
            pending.append(piece)
            rest = memoryview(piece)
            while rest:
                number = position // section_bytes
                end = min((number + 1) * section_bytes, size)
                part = rest[: end - position]
                crc = crc32c(part, crc)
                position += len(part)
                rest = rest[len(part) :]
                if position == end:
                    check(number, crc)
                    verified, crc = end, 0
            while pending and pending_from + len(pending[0]) <= verified:
                pending_from += len(pending[0])
                yield pending.popleft()


def _cut(
    pieces: Generator[bytes, None, None], start: int, end: int
) -> Generator[bytes, None, None]:
    """Yield the bytes from `start` to `end` (exclusive) of joined pieces."""
    at = 0
    with closing(pieces):
        for piece in pieces:
            if wanted := piece[max(start - at, 0) : max(end - at, 0)]:
                yield wanted
            at += len(piece)
