"""Deletes: objects by name where the custom metadata names them, else whatever the id has."""

from collections.abc import Iterator, Sequence

from services.api.errors import RemoteStorageError
from services.api.failpoints import failpoint
from services.api.segments import RemoteLogSegmentMetadata
from services.rsm.backends.protocol import MAX_DELETE_KEYS
from services.rsm.location import Location
from services.rsm.locations import Locations
from services.rsm.object_deletes import ObjectDeletes
from services.rsm.under_way import CopiesUnderWay


class SegmentDeleter:
    """delete_log_segment_data, of one and of many.

    Manifests go in the first requests, so that large batches end segments before their bytes go.
    Within one request the store deletes in any order: a crash may leave a manifest without bytes.
    That is harmless: deletes are repeated until they succeed, and what is left is found again by
    the names in the custom metadata or by listing.
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
        """The outcome of each, in order; None: gone."""
        failed: dict[int, RemoteStorageError] = {}
        doomed: dict[Location, list[tuple[int, str]]] = {}
        for at, metadata in enumerate(metadatas):
            try:
                for location, keys in self._keys_of(metadata):
                    doomed.setdefault(location, []).extend((at, key) for key in keys)
            except RemoteStorageError as e:
                failed[at] = e
        for location, items in doomed.items():
            items.sort(key=lambda item: not item[1].endswith(".manifest"))
            for first in range(0, len(items), MAX_DELETE_KEYS):
                batch = items[first : first + MAX_DELETE_KEYS]
                # Bytes stay where an earlier request could not delete their manifest.
                batch = [item for item in batch if item[0] not in failed]
                failed |= self._delete(location, batch)
                failpoint("rsm.delete_some")
        return [failed.get(at) for at in range(len(metadatas))]

    def _delete(
        self, location: Location, batch: Sequence[tuple[int, str]]
    ) -> dict[int, RemoteStorageError]:
        keys = [key for _, key in batch]
        failures = self._deletes.delete(location.backend, keys) if keys else {}
        return {at: failures[key] for at, key in batch if key in failures}

    def _keys_of(
        self, metadata: RemoteLogSegmentMetadata
    ) -> Iterator[tuple[Location, Sequence[str]]]:
        """The keys to delete, and where. Of a copy that never finished it also ends the uploads,
        in every location: the current one may have been another when the copy began."""
        self._under_way.require_none(self._locations.current.keys(metadata))
        named = self._locations.named_by(metadata)
        if named is not None:
            location, found = named
            keys = location.keys(metadata)
            yield location, [keys.manifest, keys.log(found.attempt), keys.indexes(found.attempt)]
            return
        for location in self._locations.all:
            keys = location.keys(metadata)
            # First, so that an upload that completes meanwhile is listed as an object.
            for upload in list(location.backend.list_uploads(keys.prefix)):
                location.backend.abort_upload(upload)
            yield location, list(location.backend.list_keys(keys.prefix))
