"""Delete segments: by name if the custom metadata names all objects, else by listing the id."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Lock

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.api.imported_segments import is_imported
from services.api.segments import RemoteLogSegmentMetadata
from services.common.failpoints import failpoint
from services.common.retry import Backoff
from services.rsm.active_copies import ActiveCopies, Waiter
from services.rsm.backends.protocol import MAX_DELETE_KEYS, StorageBackend
from services.rsm.deadline import (
    cleaning_up,
    next_slice,
    require_wanted,
    token_bucket,
    within_deadline,
)
from services.rsm.locations import Location, Locations

# A dozen requests that the store accepts raise the rate from the least to the most; six that it
# refuses lower it from the most to the least.
_LEAST_SHARE = 1 / 64
_STEP_SHARE = 1 / 12
_PAUSES = Backoff(initial_s=0.2, max_s=2.0)


class DeletePace:
    """A rate of keys that halves if the store throttles, and else grows step by step.

    Thread-safe; shared by all deletes of a process.
    """

    def __init__(self, most_keys_per_s: int, waiter: Waiter) -> None:
        self._most = float(most_keys_per_s)
        self._waiter = waiter
        self._lock = Lock()
        name = f"deletes per second (limit {most_keys_per_s})"
        self._limit = token_bucket(self._most, name, waiter)
        self._slowed_at_s = waiter.now()

    @property
    def keys_per_s(self) -> float:
        return self._limit.rate_per_s

    def acquire(self, keys: int, is_wanted: Callable[[], bool]) -> float:
        """Wait until `keys` keys may be deleted; return the time of that, for `slow_down`."""
        self._limit.spend(keys, self._waiter.unless_closed(is_wanted))
        return self._waiter.now()

    def acquire_at_once(self, keys: int) -> float:
        """Acquire a few keys without waiting, as `acquire`; later calls make up for them."""
        self._limit.spend_at_once(keys)
        return self._waiter.now()

    def slow_down(self, began_s: float) -> None:
        """Halve the rate after the store throttled a request that began at `began_s`.

        Of concurrent requests, which fail for one reason, only the first counts.
        """
        with self._lock:
            if began_s >= self._slowed_at_s:
                self._slowed_at_s = self._waiter.now()
                self._limit.set_rate(max(self._limit.rate_per_s / 2, self._most * _LEAST_SHARE))

    def speed_up(self) -> None:
        """Raise the rate by a step after a request succeeded."""
        with self._lock:
            self._limit.set_rate(min(self._limit.rate_per_s + self._most * _STEP_SHARE, self._most))


class ObjectDeletes:
    """Send and retry every delete of a process.

    The HTTP client does not retry these requests, so that each failure slows the pace. Keys that
    failed temporarily are retried, after a pause that doubles each time, at an adaptive rate.
    """

    def __init__(
        self,
        pace: DeletePace,
        retries: int,
        waiter: Waiter,
        on_delete: Callable[[Sequence[str]], None] = lambda keys: None,
    ) -> None:
        """Set up deletes; `on_delete` is called with all keys that may have been deleted."""
        self._pace = pace
        self._retries = retries
        self._waiter = waiter
        self._on_delete = on_delete

    def delete(
        self, backend: StorageBackend, keys: Sequence[str]
    ) -> Mapping[str, RemoteStorageError]:
        """Delete up to MAX_DELETE_KEYS objects; return the reason for each that may still exist.

        Idempotent: a key without an object counts as deleted. Never raises. No request is sent for
        a caller that is gone.
        """
        return self._delete(backend, keys, self._acquire)

    def clean_up(
        self, backend: StorageBackend, keys: Sequence[str]
    ) -> Mapping[str, RemoteStorageError]:
        """Delete the few keys of a failed copy, as `delete` does, for at most CLEAN_UP_S.

        Runs whether or not a caller waits, and ahead of all batches, one of which may take longer.
        """
        with cleaning_up(self._waiter):
            return self._delete(backend, keys, self._pace.acquire_at_once)

    def _delete(
        self, backend: StorageBackend, keys: Sequence[str], acquire: Callable[[int], float]
    ) -> Mapping[str, RemoteStorageError]:
        """Delete keys with retries; `acquire` is a method of the pace."""
        for_good: dict[str, RemoteStorageError] = {}
        for_now: dict[str, RemoteStorageError] = {}
        left = list(keys)
        for attempt in range(self._retries + 1):
            try:
                self._pause_before(attempt)
                began_s = acquire(len(left))
            except RetriableRemoteStorageError as e:
                # The store's error, if it sent one, has more information.
                return for_good | {key: for_now.get(key, e) for key in left}
            answered = backend.delete(left)
            self._on_delete(left)
            for_now = {key: e for key, e in answered.items() if _is_for_now(e)}
            for_good |= {key: e for key, e in answered.items() if not _is_for_now(e)}
            left = list(for_now)
            if not left:
                self._pace.speed_up()
                break
            self._pace.slow_down(began_s)
        return for_good | for_now

    def _acquire(self, keys: int) -> float:
        return self._pace.acquire(keys, _is_wanted)

    def _pause_before(self, attempt: int) -> None:
        if attempt:
            self._waiter.until(self._waiter.now() + _PAUSES.delay_s(attempt), _is_wanted)
        require_wanted()


def _is_wanted() -> bool:
    """Return True, or raise the reason why the caller need not wait."""
    require_wanted()
    return True


def _is_for_now(error: RemoteStorageError) -> bool:
    return isinstance(error, RetriableRemoteStorageError)


_ObjectsToDelete = dict[Location, list[tuple[int, str]]]
"""Keys to delete, each with the index of its segment in the call."""


class SegmentDeleter:
    """Delete the data of one segment or many.

    Segments are deleted one after another, so that each request of a large batch completes some:
    the rest may not be done before the caller's deadline. A manifest is deleted in the same request
    as its bytes, or in one before. Within one request the store deletes in any order, so a crash
    may leave a manifest without bytes. That is harmless: deletes are repeated until they succeed,
    and find the rest by the names in the custom metadata or by listing.
    """

    def __init__(
        self, locations: Locations, deletes: ObjectDeletes, active_copies: ActiveCopies
    ) -> None:
        self._locations = locations
        self._deletes = deletes
        self._active_copies = active_copies

    def delete(
        self, metadatas: Sequence[RemoteLogSegmentMetadata]
    ) -> list[RemoteStorageError | None]:
        """Delete each segment and return its outcome, in order; None if it is gone.

        Segments with known names go first: they need no listing of a store that may be down.
        """
        with within_deadline():
            failed = self._delete_each(metadatas)
        return [failed.get(at) for at in range(len(metadatas))]

    def _delete_each(
        self, metadatas: Sequence[RemoteLogSegmentMetadata]
    ) -> dict[int, RemoteStorageError]:
        """Return the errors of the segments that could not be deleted, by index."""
        failed: dict[int, RemoteStorageError] = {}
        named: _ObjectsToDelete = {}
        unfinished: deque[int] = deque()
        for at, metadata in enumerate(metadatas):
            try:
                found = self._named_keys(metadata)
            except RemoteStorageError as e:
                failed[at] = e
                continue
            if found is None:
                unfinished.append(at)
            else:
                location, keys = found
                named.setdefault(location, []).extend((at, key) for key in keys)
        self._delete_all(named, failed)
        leftovers = _Leftovers(self._locations, self._active_copies)
        while unfinished:
            batch = ((at, metadatas[at]) for at in next_slice(unfinished))
            listed = leftovers.of(batch, failed)
            self._delete_all(listed, failed)
        return failed

    def _delete_all(
        self, to_delete: _ObjectsToDelete, failed: dict[int, RemoteStorageError]
    ) -> None:
        """Delete in batches; add to `failed` the segments that could not be deleted."""
        for location, items in to_delete.items():
            for first in range(0, len(items), MAX_DELETE_KEYS):
                batch = items[first : first + MAX_DELETE_KEYS]
                # Bytes stay if an earlier request could not delete their manifest.
                batch = [item for item in batch if item[0] not in failed]
                batch.sort(key=lambda item: not _is_manifest(item[1]))
                failed |= self._delete(location, batch)
                failpoint("rsm.delete_some")

    def _delete(
        self, location: Location, batch: Sequence[tuple[int, str]]
    ) -> dict[int, RemoteStorageError]:
        keys = [key for _, key in batch]
        failures = self._deletes.delete(location.backend, keys) if keys else {}
        return {at: failures[key] for at, key in batch if key in failures}

    def _named_keys(
        self, metadata: RemoteLogSegmentMetadata
    ) -> tuple[Location, Sequence[str]] | None:
        """Return the keys of a finished copy, none in a read-only location; None if the id must be
        listed: the copy never finished, or replaced another one.
        """
        _require_not_active(self._locations, self._active_copies, metadata)
        if is_imported(metadata.custom_metadata):
            place, layout = self._locations.foreign(metadata)
            return place, [] if place.read_only else layout.keys(place.prefix, metadata)
        named = self._locations.named_by(metadata)
        if named is not None and named[0].read_only:
            return named[0], []
        if named is None or named[1].replaces:
            return None
        location, found = named
        keys = location.keys(metadata)
        return location, [keys.manifest, keys.log(found.attempt), keys.indexes(found.attempt)]


class _Leftovers:
    """Find what unfinished copies left, for one call.

    A location that cannot be listed is tried once, not once for each copy: every wait for it holds
    a thread. Since each copy is searched in all locations, the others fail with the same error.
    """

    def __init__(self, locations: Locations, active_copies: ActiveCopies) -> None:
        self._locations = locations
        self._active_copies = active_copies
        self._failure: RetriableRemoteStorageError | None = None

    def of(
        self,
        copies: Iterable[tuple[int, RemoteLogSegmentMetadata]],
        failed: dict[int, RemoteStorageError],
    ) -> _ObjectsToDelete:
        """Abort the uploads of `copies` and return the keys of their objects.

        Adds to `failed` the copies of which not all objects could be listed.
        """
        to_delete: _ObjectsToDelete = {}
        for at, metadata in copies:
            try:
                for location, keys in self._listed(metadata):
                    to_delete.setdefault(location, []).extend((at, key) for key in keys)
            except RemoteStorageError as e:
                failed[at] = e
        return to_delete

    def _listed(
        self, metadata: RemoteLogSegmentMetadata
    ) -> Iterator[tuple[Location, Sequence[str]]]:
        """Yield the keys in every location.

        The location that the topic matches may have changed after the copy began.
        """
        _require_not_active(self._locations, self._active_copies, metadata)
        for location in self._locations.all:
            if self._failure is not None:
                raise self._failure
            try:
                require_wanted()
                keys = _listed_keys(location, metadata)
            except RetriableRemoteStorageError as e:
                self._failure = e
                raise
            yield location, keys


def _require_not_active(
    locations: Locations, active_copies: ActiveCopies, metadata: RemoteLogSegmentMetadata
) -> None:
    for location in locations.written:
        active_copies.require_none(location.keys(metadata))


def _listed_keys(location: Location, metadata: RemoteLogSegmentMetadata) -> Sequence[str]:
    """Abort the unfinished uploads, and list the keys, manifest first."""
    prefix = location.keys(metadata).prefix
    # Abort first, so that an upload that completes meanwhile is listed as an object.
    for upload in list(location.backend.list_uploads(prefix)):
        location.backend.abort_upload(upload)
    keys = (stored.key for stored in location.backend.list_objects(prefix))
    return sorted(keys, key=lambda key: not _is_manifest(key))


def _is_manifest(key: str) -> bool:
    return key.endswith("manifest")
