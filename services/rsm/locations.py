"""Places where segments may be: the current location, and the registry of earlier ones."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.api.errors import CorruptSegmentError, RemoteResourceNotFoundError
from services.api.segments import RemoteLogSegmentMetadata
from services.api.validation import require
from services.rsm.backends.protocol import StorageBackend
from services.rsm.layout import FIELD, CustomMetadata, Manifest, SegmentKeys, segment_keys


@dataclass(frozen=True, slots=True)
class Location:
    """One registered location. Its number is never given to another place.

    Attributes:
        prefix: of every key; empty or ending with a slash.
        place: where it is, for people; never with a credential.
    """

    location_id: int
    backend: StorageBackend
    prefix: str
    place: str = ""

    def __str__(self) -> str:
        return f"location {self.location_id} ({self.place or f'prefix {self.prefix!r}'})"

    def keys(self, metadata: RemoteLogSegmentMetadata) -> SegmentKeys:
        return segment_keys(self.prefix, metadata)

    def read_manifest(self, keys: SegmentKeys) -> Manifest:
        """The manifest of a segment.

        Raises:
            RemoteResourceNotFoundError: no copy of it is complete.
            CorruptSegmentError: there is something else under its key.
        """
        name = f"{keys.manifest} in {self}"
        manifest = Manifest.from_bytes(self.backend.get(keys.manifest), name)
        if self.keys(manifest.metadata) != keys:
            segment = manifest.metadata.remote_log_segment_id
            raise CorruptSegmentError(f"{name}: the manifest of another segment, {segment}")
        return manifest


class Locations:
    """The allow-list of places. What callers send names one of them by its number, or none."""

    def __init__(self, current: Location, others: Sequence[Location] = ()) -> None:
        """`others` are read and deleted from, never written to; no two have the same number."""
        self.current = current
        self.others = tuple(others)
        self._by_id = {location.location_id: location for location in self.all}

    @property
    def all(self) -> Sequence[Location]:
        """The current one first."""
        return (self.current, *self.others)

    def numbered(self, location_id: int) -> Location | None:
        """The location of a number; None: it is not registered."""
        return self._by_id.get(location_id)

    def named_by(
        self, metadata: RemoteLogSegmentMetadata
    ) -> tuple[Location, CustomMetadata] | None:
        """Where the copy was put, by what it answered; None: it never finished, as far as the
        caller knows, and may have left something in any location. Asks no store.

        Raises:
            InvalidRequestError: not of a known version, or of a location that is not registered.
        """
        if metadata.custom_metadata is None:
            return None
        found = CustomMetadata.from_bytes(metadata.custom_metadata)
        is_registered = found.location_id in self._by_id
        require(is_registered, FIELD, f"location {found.location_id} is not registered")
        return self._by_id[found.location_id], found

    def find(self, metadata: RemoteLogSegmentMetadata) -> tuple[Location, CustomMetadata]:
        """Where a segment's bytes are. Asks for manifests only where the caller does not know.

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
