"""Define the current location, and the registry of the others."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.api.errors import (
    CorruptSegmentError,
    RemoteResourceNotFoundError,
    StoreNotFoundError,
)
from services.api.imported_segments import read_imported
from services.api.segments import RemoteLogSegmentMetadata
from services.api.validation import require
from services.rsm.backends.protocol import StorageBackend
from services.rsm.foreign_layouts import ForeignLayout
from services.rsm.layout import FIELD, CustomMetadata, Manifest, SegmentKeys, segment_keys


@dataclass(frozen=True, slots=True)
class Location:
    """One registered location. Its number is never given to another place.

    Attributes:
        prefix: of every key; empty or ending with a slash.
        place: the place in words, for messages; never contains a credential.
        layout: of the objects that another tiered storage wrote; None: they are RSM's own.
        read_only: objects are never deleted.
    """

    location_id: int
    backend: StorageBackend
    prefix: str
    place: str = ""
    layout: ForeignLayout | None = None
    read_only: bool = False

    def __str__(self) -> str:
        return f"location {self.location_id} ({self.place or f'prefix {self.prefix!r}'})"

    def keys(self, metadata: RemoteLogSegmentMetadata) -> SegmentKeys:
        return segment_keys(self.prefix, metadata)

    def read_manifest(self, keys: SegmentKeys) -> Manifest:
        """Read the manifest of a segment.

        Raises:
            RemoteResourceNotFoundError: the location has no complete copy.
            CorruptSegmentError: the object under its key is something else.
        """
        name = f"{keys.manifest} in {self}"
        manifest = Manifest.from_bytes(self.backend.get(keys.manifest), name)
        if self.keys(manifest.metadata) != keys:
            segment = manifest.metadata.remote_log_segment_id
            raise CorruptSegmentError(f"{name}: the manifest of another segment, {segment}")
        return manifest

    def read_manifest_of(self, keys: SegmentKeys, custom: CustomMetadata) -> Manifest:
        """Read the manifest of the copy that `custom` describes, also if another copy replaced it.

        Raises as read_manifest does.
        """
        manifest = self.read_manifest(keys)
        of_copy = manifest.of_copy(custom)
        if of_copy is None:
            raise CorruptSegmentError(
                f"{keys.manifest} in {self} is not the manifest that the metadata of attempt "
                f"{custom.attempt} was written with: it describes attempt {manifest.attempt}"
            )
        return of_copy


class Locations:
    """The allow-list of places. Callers name a place by its number only, or not at all."""

    def __init__(self, current: Location, others: Sequence[Location] = ()) -> None:
        """Register the locations; `others` are read and deleted from, never written to.

        No two locations may have the same number.
        """
        self.current = current
        self.others = tuple(each for each in others if not (each.layout or each.read_only))
        self._by_id = {location.location_id: location for location in (current, *others)}

    @property
    def all(self) -> Sequence[Location]:
        """Return the locations of this deployment, the current one first.

        What belongs to others, in another layout or read-only, is only read by its number: it has
        no marker of ours, and is not searched for objects.
        """
        return (self.current, *self.others)

    def numbered(self, location_id: int) -> Location | None:
        """Return the location with a number; None if it is not registered."""
        return self._by_id.get(location_id)

    def named_by(
        self, metadata: RemoteLogSegmentMetadata
    ) -> tuple[Location, CustomMetadata] | None:
        """Return the location that the custom metadata names, without a request to a store.

        None if the copy never finished, as far as the caller knows: it may have left objects in any
        location.

        Raises:
            InvalidRequestError: of an unknown version, or of a location that is not registered.
        """
        if metadata.custom_metadata is None:
            return None
        custom = CustomMetadata.from_bytes(metadata.custom_metadata)
        is_registered = custom.location_id in self._by_id
        text = f"location {custom.location_id} is not registered; add it to RSM_LOCATIONS_FILE"
        require(is_registered, FIELD, text)
        location = self._by_id[custom.location_id]
        require(location.layout is None, FIELD, f"{location} does not have RSM's own layout")
        return location, custom

    def foreign(self, metadata: RemoteLogSegmentMetadata) -> tuple[Location, ForeignLayout]:
        """Return the location of an imported segment, and its layout.

        Raises:
            InvalidRequestError: the custom metadata is malformed.
            StoreNotFoundError: the location is not registered, or has no such layout.
        """
        location_id = read_imported(metadata.custom_metadata or b"").location_id
        location = self._by_id.get(location_id)
        if location is None or location.layout is None:
            raise StoreNotFoundError(
                f"{metadata.remote_log_segment_id}: imported from location {location_id}, which "
                "RSM_LOCATIONS_FILE does not have with the layout of another storage"
            )
        return location, location.layout

    def find(self, metadata: RemoteLogSegmentMetadata) -> tuple[Location, CustomMetadata]:
        """Find the location of a segment; read manifests only if the caller has no custom metadata.

        Raises:
            InvalidRequestError: as named_by.
            RemoteResourceNotFoundError: no location has a complete copy.
        """
        named = self.named_by(metadata)
        if named is not None:
            return named
        for location in self.all:
            try:
                manifest = location.read_manifest(location.keys(metadata))
            except RemoteResourceNotFoundError:
                continue
            return location, manifest.custom_metadata(location.location_id)
        segment = metadata.remote_log_segment_id
        raise RemoteResourceNotFoundError(f"{segment}: no location has a complete copy")
