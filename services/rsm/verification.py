"""Verify fetched bytes against the digests of their copy."""

import itertools
import logging
from collections.abc import Callable, Generator
from contextlib import closing

from crc32c import crc32c

from services.api.errors import CorruptSegmentError, RemoteResourceNotFoundError
from services.api.remote_storage_manager import DIGEST_CHUNK_BYTES, IndexType
from services.api.segments import RemoteLogSegmentMetadata
from services.rsm.digests import DigestCache, SegmentDigests
from services.rsm.layout import CustomMetadata
from services.rsm.locations import Location
from services.rsm.settings import VerifyReads

SAMPLE_EVERY = 16
_log = logging.getLogger(__name__)


class ReadVerification:
    """Decides which reads are verified, and verifies them as their bytes pass by. Thread-safe.

    A read is verified where it has a whole chunk of the log, or a whole index file. The manifest is
    asked for when the first of these is complete, not before the first byte.
    """

    def __init__(self, verify: VerifyReads, cache_bytes: int) -> None:
        """Of "sampled", every SAMPLE_EVERY-th read that could be verified is."""
        self._every = {"off": 0, "sampled": SAMPLE_EVERY, "always": 1}[verify]
        self._reads = itertools.count(1)
        self._cache = DigestCache(cache_bytes)

    def chooses(self) -> bool:
        """Whether the next read that could be verified is to be."""
        return self._every > 0 and next(self._reads) % self._every == 0

    def of(
        self, location: Location, metadata: RemoteLogSegmentMetadata, found: CustomMetadata
    ) -> "SegmentVerification":
        """For one read of a segment whose objects are those that `found` describes."""
        return SegmentVerification(self._cache, location, metadata, found)


class SegmentVerification:
    """One read. Without a manifest of this attempt that can be understood its bytes go out as they
    are."""

    def __init__(
        self,
        cache: DigestCache,
        location: Location,
        metadata: RemoteLogSegmentMetadata,
        found: CustomMetadata,
    ) -> None:
        self._cache = cache
        self._location = location
        self._keys = location.keys(metadata)
        self._name = f"{metadata.remote_log_segment_id}, attempt {found.attempt}"
        self._found = found
        self._digests: SegmentDigests | None = None
        self._asked = False

    def log(self, pieces: Generator[bytes, None, None], start: int) -> Generator[bytes, None, None]:
        """`pieces` of the log from byte `start` on, unchanged.

        Raises:
            CorruptSegmentError: before the last bytes of a chunk that is not what was copied.
        """
        size = self._found.log_size_bytes

        def check(number: int, crc: int) -> None:
            digests = self._known()
            if digests is not None:
                first = number * DIGEST_CHUNK_BYTES
                last = min(first + DIGEST_CHUNK_BYTES, size) - 1
                what = f"chunk {number} of the log, bytes {first} to {last}"
                self._compare(what, crc, digests.log_chunk_crc32c[number])

        return _checked(pieces, start, size, DIGEST_CHUNK_BYTES, check)

    def index(
        self, pieces: Generator[bytes, None, None], kind: IndexType
    ) -> Generator[bytes, None, None]:
        """`pieces` of a whole index file, unchanged; raises as `log`."""
        size = self._found.index_sizes_bytes[kind]

        def check(number: int, crc: int) -> None:
            digests = self._known()
            if digests is not None:
                what = f"{kind.name} index, bytes 0 to {size - 1}"
                self._compare(what, crc, digests.index_crc32c[kind])

        return _checked(pieces, 0, size, size, check)

    def _known(self) -> SegmentDigests | None:
        if not self._asked:
            self._asked = True
            self._digests = self._find()
        return self._digests

    def _find(self) -> SegmentDigests | None:
        why = "there is no manifest of it"
        try:
            found = self._cache.get(self._location, self._keys, self._found)
        except RemoteResourceNotFoundError:
            found = None  # Deleted meanwhile: its bytes are the last to go.
        except CorruptSegmentError as e:
            # What is damaged is not what is read.
            found, why = None, str(e)
        if found is None:
            _log.warning("%s: read unverified, %s", self._name, why)
        return found

    def _compare(self, what: str, crc: int, expected: int) -> None:
        if crc != expected:
            raise CorruptSegmentError(
                f"{self._name}: {what}: crc32c is {crc:08x}, of what was copied {expected:08x}"
            )


def has_whole_chunk(start: int, end: int, size: int) -> bool:
    """Whether bytes `start` to `end`, inclusive, of a log of `size` have a chunk with a digest."""
    first = -(-start // DIGEST_CHUNK_BYTES) * DIGEST_CHUNK_BYTES
    return first < size and min(first + DIGEST_CHUNK_BYTES, size) - 1 <= end


def _checked(
    pieces: Generator[bytes, None, None],
    start: int,
    size: int,
    section_bytes: int,
    check: Callable[[int, int], None],
) -> Generator[bytes, None, None]:
    """`pieces` of a file of `size` bytes from `start` on, unchanged.

    `check(number, crc32c)` is called for each whole section before its last bytes are given out.
    """
    position, crc = start, 0
    from_its_start = start % section_bytes == 0
    with closing(pieces):
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                number = position // section_bytes
                end = min((number + 1) * section_bytes, size)
                part = rest[: end - position]
                crc = crc32c(part, crc)
                position += len(part)
                rest = rest[len(part) :]
                if position == end:
                    if from_its_start:
                        check(number, crc)
                    from_its_start, crc = True, 0
            yield piece
