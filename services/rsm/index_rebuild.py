"""Rebuild the lost or damaged indexes of a copy: from its log, leader epochs from its manifest."""

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from threading import BoundedSemaphore, Lock

from cachetools import TTLCache
from crc32c import crc32c

from services.api.errors import (
    CorruptSegmentError,
    RemoteResourceNotFoundError,
    RetriableRemoteStorageError,
)
from services.api.remote_storage_manager import FileDigest, IndexType
from services.api.segments import RemoteLogSegmentMetadata
from services.records.batches import BatchError, Claims, StreamWindow, walk_batches
from services.records.index_files import (
    EMPTY_PRODUCER_SNAPSHOT,
    open_transactions,
    producer_entries,
)
from services.records.producers import Producers
from services.records.segment_indexes import IndexBuilder, Transactions
from services.rsm.deadline import ByteRate, require_wanted
from services.rsm.index_cache import IndexCache, Walked
from services.rsm.layout import (
    MANIFEST_ENCODING,
    CustomMetadata,
    Manifest,
    SegmentKeys,
    keys_of_segment_with,
)
from services.rsm.locations import Location, Locations
from services.rsm.metrics import INDEX_REBUILDS
from services.rsm.verification import ReadVerification, SegmentVerification

_log = logging.getLogger(__name__)

READ_BYTES = 8 * 1024 * 1024
"""Of a log by one request to the store."""
MAX_WALKS = 2
"""Logs that are read at once to rebuild indexes: they cost CPU time, which other reads need."""
_TURN_S = 2.0
_WALK_WAIT_S = 30.0
_MAX_UNFINISHED = 16
_UNFINISHED_S = 600.0
_NEAREST_COPIES = 8

Missing = RemoteResourceNotFoundError | CorruptSegmentError
_MISSING = (RemoteResourceNotFoundError, CorruptSegmentError)


@dataclass(frozen=True, slots=True)
class Copy:
    """The objects of a segment that its custom metadata names."""

    location: Location
    keys: SegmentKeys
    custom: CustomMetadata
    verification: SegmentVerification

    def stored_index(self, kind: IndexType) -> bytes:
        """Read an index from the store and verify it; raises as SegmentVerification.index."""
        size = self.custom.index_sizes_bytes[kind]
        first = self.custom.index_position(kind)
        pieces = self.verification.fetch_indexes(first, first + size - 1)
        return b"".join(self.verification.index(pieces, kind)) if size else b""

    def log(self, first: int, last: int) -> Iterator[bytes]:
        """Yield verified bytes of the log while the caller waits for the call."""
        require_wanted()
        for piece in self.verification.log(self.verification.fetch_log, first, last):
            yield piece
            require_wanted()


@dataclass(slots=True)
class _Walk:
    """How far a log was read, and the indexes up to there.

    Attributes:
        producers: None if the snapshot at the segment's start is lost.
    """

    builder: IndexBuilder
    producers: Producers | None
    position: int
    next_offset: int


class IndexRebuild:
    """Rebuild indexes, each copy's by one walk over its log at a time. Thread-safe.

    What a walk builds is cached, because what has lost one index has often lost all; so is its
    failure, because readers repeat their reads. If the caller of a walk leaves, the next one goes
    on from there, so that a long log on a slow store is read to its end.
    """

    def __init__(
        self,
        locations: Locations,
        verification: ReadVerification,
        cache: IndexCache,
        rate: ByteRate,
    ) -> None:
        self._locations = locations
        self._verification = verification
        self._cache = cache
        self._rate = rate
        self._turns = BoundedSemaphore(MAX_WALKS)
        self._lock = Lock()
        self._unfinished: TTLCache[tuple[int, str], _Walk] = TTLCache(
            _MAX_UNFINISHED, _UNFINISHED_S
        )

    def rebuilt(
        self,
        metadata: RemoteLogSegmentMetadata,
        location: Location,
        custom: CustomMetadata,
        kind: IndexType,
        error: Missing,
    ) -> bytes:
        """Return an index whose read failed by `error`, as it is stored if a second read succeeds.

        Raises:
            RemoteResourceNotFoundError: the segment is gone.
            CorruptSegmentError: it is unknown what was copied, or the index cannot be rebuilt.
            RetriableRemoteStorageError: the store is unreachable, or other walks take too long.
        """
        copy = self._copy(metadata, location, custom)
        try:
            copy.verification.digests()
        except CorruptSegmentError:
            raise error from None
        if custom.index_sizes_bytes[kind]:
            try:
                return copy.stored_index(kind)
            except _MISSING as e:
                error = e
        try:
            manifest = location.read_manifest_of(copy.keys, custom)
        except _MISSING:
            raise error from None
        if not custom.index_sizes_bytes[kind]:
            return b""
        try:
            index = self._rebuild(copy, manifest, kind)
        except _MISSING as e:
            location.read_manifest_of(copy.keys, custom)  # It is gone if the segment was deleted.
            raise CorruptSegmentError(f"{error}; it cannot be rebuilt: {e}") from e
        INDEX_REBUILDS.labels(kind.name.lower()).inc()
        _log.warning(
            "%s: rebuilt its %s index: %s", metadata.remote_log_segment_id, kind.name, error
        )
        return index

    def _copy(
        self, metadata: RemoteLogSegmentMetadata, location: Location, custom: CustomMetadata
    ) -> Copy:
        verification = self._verification.of(location, metadata, custom)
        return Copy(location, location.keys(metadata), custom, verification)

    def _rebuild(self, copy: Copy, manifest: Manifest, kind: IndexType) -> bytes:
        if kind is IndexType.LEADER_EPOCH:
            if manifest.leader_epochs is None:
                raise CorruptSegmentError("the manifest does not have it, since it is too long")
            return manifest.leader_epochs.encode(MANIFEST_ENCODING)
        walked = self._cache.rebuilt(
            copy.location,
            copy.keys.indexes(copy.custom.attempt),
            copy.custom,
            partial(self._walk, copy, manifest),
            _WALK_WAIT_S,
        )
        if isinstance(walked, str):
            raise CorruptSegmentError(walked)
        if kind not in walked:
            raise CorruptSegmentError("the producer snapshot before the segment is lost, too")
        return walked[kind]

    def _walk(self, copy: Copy, manifest: Manifest) -> Walked:
        if not self._turns.acquire(timeout=_TURN_S):
            raise RetriableRemoteStorageError(
                f"{MAX_WALKS} other logs are being read to rebuild indexes; retry"
            )
        try:
            walk = self._walk_log(copy, manifest)
        except (BatchError, CorruptSegmentError) as e:
            return f"{copy.keys.log(copy.custom.attempt)}: {e}"
        finally:
            self._turns.release()
        walked = {
            IndexType.OFFSET: walk.builder.offset_index(),
            IndexType.TIMESTAMP: walk.builder.time_index(),
            IndexType.TRANSACTION: walk.builder.transaction_index(),
        }
        if walk.producers is not None:
            walked[IndexType.PRODUCER_SNAPSHOT] = walk.producers.snapshot()
        aborted, lost = walked[IndexType.TRANSACTION], manifest.indexes.get(IndexType.TRANSACTION)
        if lost not in (None, FileDigest(len(aborted), crc32c(aborted))):
            _log.warning(
                "%s: its rebuilt transaction index is not the one that was copied: the producer "
                "snapshot before the segment is lost, so a transaction that began earlier counts "
                "from its first batch in the segment",
                manifest.metadata.remote_log_segment_id,
            )
        return walked

    def _walk_log(self, copy: Copy, manifest: Manifest) -> _Walk:
        """Walk the log from where the last walk over it ended, if that was too early."""
        log_key, size = copy.keys.log(copy.custom.attempt), manifest.log.size_bytes
        key, first = (copy.location.location_id, log_key), manifest.metadata.start_offset
        with self._lock:
            walk = self._unfinished.pop(key, None)
        if walk is None:
            walk = _Walk(IndexBuilder(first), None, 0, first)
            before = self._snapshot_before(manifest.metadata)
            if before is not None:
                builder = IndexBuilder(first, Transactions(open_transactions(before)))
                walk = _Walk(builder, Producers(before), 0, first)
        window = StreamWindow(
            lambda first, last: self._rate.limited(copy.log(first, last)), size, READ_BYTES
        )
        claims = Claims.of(manifest.metadata)
        try:
            for batch in walk_batches(
                window, walk.position, size, walk.next_offset, verify=True, claims=claims
            ):
                walk.builder.observe(batch)
                if walk.producers is not None:
                    walk.producers.observe(batch)
                walk.position, walk.next_offset = batch.next_position, batch.last_offset + 1
        except RetriableRemoteStorageError:
            with self._lock:
                self._unfinished[key] = walk
            raise
        finally:
            window.close()
        return walk

    def _snapshot_before(self, segment: RemoteLogSegmentMetadata) -> bytes | None:
        """Return the producer snapshot at the segment's start; None if it is lost."""
        if segment.start_offset == 0:
            return EMPTY_PRODUCER_SNAPSHOT
        before = self._copy_before(segment)
        if before is None:
            return None
        try:
            snapshot = before.stored_index(IndexType.PRODUCER_SNAPSHOT)
            producer_entries(snapshot)
        except (*_MISSING, ValueError) as e:
            _log.warning("%s: its producer snapshot is lost: %s", before.keys.stem, e)
            return None
        return snapshot

    def _copy_before(self, segment: RemoteLogSegmentMetadata) -> Copy | None:
        """Return the copy that ends where the segment begins, in the segment's history."""
        found: list[tuple[int, Copy]] = []
        for location in self._locations.sources:
            for key in _manifests_before(location, segment):
                try:
                    manifest = location.read_manifest(keys_of_segment_with(key))
                except _MISSING:
                    continue
                epoch = max(each.leader_epoch for each in manifest.metadata.segment_leader_epochs)
                is_older = epoch <= segment.segment_leader_epochs[0].leader_epoch
                if manifest.metadata.end_offset + 1 == segment.start_offset and is_older:
                    custom = manifest.custom_metadata(location.location_id)
                    found.append((epoch, self._copy(manifest.metadata, location, custom)))
        return max(found, key=lambda each: each[0])[1] if found else None


def _manifests_before(location: Location, segment: RemoteLogSegmentMetadata) -> Iterator[str]:
    """Return the keys of the manifests that begin next before the segment.

    Stores list forward only: offsets are listed back from the segment in growing steps.
    """
    folder = location.keys(segment).stem.rpartition("/")[0]
    start, end_key = segment.start_offset, f"{folder}/{segment.start_offset:020d}"
    step, first = segment.end_offset - start + 1, start
    nearest: deque[str] = deque(maxlen=_NEAREST_COPIES)
    while first and not nearest:
        first, step = max(start - step, 0), step * 8
        listed = location.backend.list_objects(f"{folder}/", f"{folder}/{first:020d}")
        for stored in takewhile(lambda each: each.key < end_key, listed):
            require_wanted()
            if stored.key.endswith(".manifest"):
                nearest.append(stored.key)
    return reversed(nearest)
