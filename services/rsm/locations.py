"""All places where segments may be: the current one, to which copies go, and those of before."""

from collections.abc import Sequence

from services.api.errors import RemoteResourceNotFoundError
from services.api.segments import RemoteLogSegmentMetadata
from services.api.validation import require
from services.rsm.custom_metadata import FIELD, CustomMetadata
from services.rsm.location import Location


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
