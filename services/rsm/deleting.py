"""Deletes: objects by name where the custom metadata names them, else whatever the id has."""

from collections.abc import Sequence

from services.api.errors import RemoteStorageError
from services.api.failpoints import failpoint
from services.api.segments import RemoteLogSegmentMetadata
from services.rsm.backends.protocol import MAX_DELETE_KEYS
from services.rsm.location import Location
from services.rsm.under_way import CopiesUnderWay


class SegmentDeleter:
    """delete_log_segment_data, of one and of many.

    Manifests go in the first requests, so that large batches end segments before their bytes go.
    Within one request the store deletes in any order: a crash may leave a manifest without bytes.
    That is harmless: deletes are repeated until they succeed, and what is left is found again by
    the names in the custom metadata or by listing.
    """

    def __init__(self, location: Location, under_way: CopiesUnderWay) -> None:
        self._location = location
        self._backend = location.backend
        self._under_way = under_way

    def delete(
        self, metadatas: Sequence[RemoteLogSegmentMetadata]
    ) -> list[RemoteStorageError | None]:
        """The outcome of each, in order; None: gone."""
        failed: dict[int, RemoteStorageError] = {}
        doomed: list[tuple[int, str]] = []
        for at, metadata in enumerate(metadatas):
            try:
                doomed += [(at, key) for key in self._keys_of(metadata)]
            except RemoteStorageError as e:
                failed[at] = e
        doomed.sort(key=lambda item: not item[1].endswith(".manifest"))
        for first in range(0, len(doomed), MAX_DELETE_KEYS):
            batch = doomed[first : first + MAX_DELETE_KEYS]
            # Bytes stay where an earlier request could not delete their manifest.
            failed |= self._delete([item for item in batch if item[0] not in failed])
            failpoint("rsm.delete_some")
        return [failed.get(at) for at in range(len(metadatas))]

    def _delete(self, batch: Sequence[tuple[int, str]]) -> dict[int, RemoteStorageError]:
        failures = self._backend.delete([key for _, key in batch]) if batch else {}
        return {at: failures[key] for at, key in batch if key in failures}

    def _keys_of(self, metadata: RemoteLogSegmentMetadata) -> list[str]:
        """The keys to delete. Of a copy that never finished it also ends the uploads."""
        keys = self._location.keys(metadata)
        self._under_way.require_none(keys)
        found = self._location.custom_metadata(metadata)
        if found is not None:
            return [keys.manifest, keys.log(found.attempt), keys.indexes(found.attempt)]
        # First, so that an upload that completes meanwhile is listed as an object.
        for upload in list(self._backend.list_uploads(keys.prefix)):
            self._backend.abort_upload(upload)
        return list(self._backend.list_keys(keys.prefix))
