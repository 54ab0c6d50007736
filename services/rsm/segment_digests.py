"""The digests that reads are held against, kept in memory up to a number of bytes."""

from array import array
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock

from cachetools import LRUCache

from services.api.remote_storage_manager import IndexType
from services.rsm.custom_metadata import CustomMetadata
from services.rsm.keys import SegmentKeys
from services.rsm.location import Location
from services.rsm.manifest import Manifest

ENTRY_OVERHEAD_BYTES = 2048
Key = tuple[int, str, str]


@dataclass(frozen=True, slots=True)
class SegmentDigests:
    """What a manifest says of the bytes of one attempt.

    Attributes:
        described: as the copy's custom metadata describes it.
        log_chunk_crc32c: of each DIGEST_CHUNK_BYTES of the log, the last shorter.
        index_crc32c: of each index file that is there.
    """

    described: CustomMetadata
    log_chunk_crc32c: "array[int]"
    index_crc32c: Mapping[IndexType, int]

    @classmethod
    def of(cls, manifest: Manifest, location_id: int) -> "SegmentDigests":
        return cls(
            manifest.custom_metadata(location_id),
            array("I", manifest.log.chunk_crc32c),
            {kind: digest.crc32c for kind, digest in manifest.indexes.items()},
        )

    @property
    def size_bytes(self) -> int:
        chunks = self.log_chunk_crc32c
        return ENTRY_OVERHEAD_BYTES + len(chunks) * chunks.itemsize


class DigestCache:
    """Digests by segment and attempt; the least recently used go first. Thread-safe.

    Readers that miss the same ones at once cause one read of the manifest.
    """

    def __init__(self, max_bytes: int) -> None:
        self._lock = Lock()
        self._cached: LRUCache[Key, SegmentDigests] = LRUCache(
            max_bytes, getsizeof=lambda digests: digests.size_bytes
        )
        self._under_way: dict[Key, Future[SegmentDigests]] = {}

    def get(
        self, location: Location, keys: SegmentKeys, found: CustomMetadata
    ) -> SegmentDigests | None:
        """Of what `found` describes; None: the manifest is of another attempt, or of other files.

        Raises:
            RemoteResourceNotFoundError: there is no manifest.
            CorruptSegmentError: there is something else under its key.
        """
        key = (location.location_id, keys.stem, found.attempt)
        with self._lock:
            digests = self._cached.get(key)
            others = None if digests else self._under_way.get(key)
            mine: Future[SegmentDigests] = Future()
            if digests is None and others is None:
                self._under_way[key] = mine
        if digests is None:
            digests = others.result() if others else self._read(key, mine, location, keys)
        return digests if digests.described == found else None

    def _read(
        self, key: Key, future: "Future[SegmentDigests]", location: Location, keys: SegmentKeys
    ) -> SegmentDigests:
        try:
            digests = SegmentDigests.of(location.read_manifest(keys), location.location_id)
        except BaseException as e:
            with self._lock:
                del self._under_way[key]
            future.set_exception(e)
            raise
        with self._lock:
            del self._under_way[key]
            fits = digests.size_bytes <= self._cached.maxsize
            if fits:
                self._cached[key] = digests
        future.set_result(digests)
        return digests
