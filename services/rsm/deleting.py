"""Deletes: objects by name where the custom metadata names them, else whatever the id has."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.api.failpoints import failpoint
from services.api.segments import RemoteLogSegmentMetadata
from services.rsm.backends.protocol import MAX_DELETE_KEYS
from services.rsm.in_time import next_slice, require_wanted
from services.rsm.location import Location
from services.rsm.locations import Locations
from services.rsm.object_deletes import ObjectDeletes
from services.rsm.under_way import CopiesUnderWay

_Doomed = dict[Location, list[tuple[int, str]]]
"""Keys to delete, each with the place of its segment in the call."""


class SegmentDeleter:
    """delete_log_segment_data, of one and of many.

    Segments go one after another, so that each request of a large batch ends some of them: more
    may not be done when the caller's time runs out. A manifest goes in the same request as its
    bytes, or in one before. Within one request the store deletes in any order: a crash may leave a
    manifest without bytes. That is harmless: deletes are repeated until they succeed, and what is
    left is found again by the names in the custom metadata or by listing.
    """

    def __init__(
        self, locations: Locations, deletes: ObjectDeletes, under_way: CopiesUnderWay
    ) -> None:
        self._locations = locations
        self._deletes = deletes
        self._under_way = under_way

    def delete(
        self, metadatas: Sequence[RemoteLogSegmentMetadata]
    ) -> list[RemoteStorageError | None]:
        """The outcome of each, in order; None: gone.

        What has a name goes first: it does not wait for listings of a store that may be away.
        """
        with self._deletes.in_time():
            failed = self._delete_each(metadatas)
        return [failed.get(at) for at in range(len(metadatas))]

    def _delete_each(
        self, metadatas: Sequence[RemoteLogSegmentMetadata]
    ) -> dict[int, RemoteStorageError]:
        """What could not be deleted, by its place."""
        failed: dict[int, RemoteStorageError] = {}
        named: _Doomed = {}
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
        leftovers = _Leftovers(self._locations, self._under_way)
        while unfinished:
            looked_for = ((at, metadatas[at]) for at in next_slice(unfinished))
            listed = leftovers.of(looked_for, failed)
            self._delete_all(listed, failed)
        return failed

    def _delete_all(self, doomed: _Doomed, failed: dict[int, RemoteStorageError]) -> None:
        """Adds to `failed` what could not be deleted."""
        for location, items in doomed.items():
            for first in range(0, len(items), MAX_DELETE_KEYS):
                batch = items[first : first + MAX_DELETE_KEYS]
                # Bytes stay where an earlier request could not delete their manifest.
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
        """Of a copy that finished; None: it never did."""
        self._under_way.require_none(self._locations.current.keys(metadata))
        named = self._locations.named_by(metadata)
        if named is None:
            return None
        location, found = named
        keys = location.keys(metadata)
        return location, [keys.manifest, keys.log(found.attempt), keys.indexes(found.attempt)]


class _Leftovers:
    """What copies that never finished left, for one call.

    A location that cannot be listed is asked once, not once for each copy: every wait for it holds
    a thread. As each copy is looked for everywhere, the others fail with the same error.
    """

    def __init__(self, locations: Locations, under_way: CopiesUnderWay) -> None:
        self._locations = locations
        self._under_way = under_way
        self._away: RetriableRemoteStorageError | None = None

    def of(
        self,
        copies: Iterable[tuple[int, RemoteLogSegmentMetadata]],
        failed: dict[int, RemoteStorageError],
    ) -> _Doomed:
        """The keys of `copies`, of which it also ends the uploads; adds to `failed` those of which
        not all could be listed."""
        doomed: _Doomed = {}
        for at, metadata in copies:
            try:
                for location, keys in self._listed(metadata):
                    doomed.setdefault(location, []).extend((at, key) for key in keys)
            except RemoteStorageError as e:
                failed[at] = e
        return doomed

    def _listed(
        self, metadata: RemoteLogSegmentMetadata
    ) -> Iterator[tuple[Location, Sequence[str]]]:
        """In every location: the current one may have been another when the copy began."""
        self._under_way.require_none(self._locations.current.keys(metadata))
        for location in self._locations.all:
            if self._away is not None:
                raise self._away
            try:
                require_wanted()
                keys = _listed_keys(location, metadata)
            except RetriableRemoteStorageError as e:
                self._away = e
                raise
            yield location, keys


def _listed_keys(location: Location, metadata: RemoteLogSegmentMetadata) -> Sequence[str]:
    """The manifest first."""
    prefix = location.keys(metadata).prefix
    # First, so that an upload that completes meanwhile is listed as an object.
    for upload in list(location.backend.list_uploads(prefix)):
        location.backend.abort_upload(upload)
    return sorted(location.backend.list_keys(prefix), key=lambda key: not _is_manifest(key))


def _is_manifest(key: str) -> bool:
    return key.endswith(".manifest")
