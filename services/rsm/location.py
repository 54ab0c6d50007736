"""A place for objects that RSM's settings name by a number."""

from dataclasses import dataclass

from services.api.segments import RemoteLogSegmentMetadata
from services.api.validation import require
from services.rsm.backends.protocol import StorageBackend
from services.rsm.custom_metadata import FIELD, CustomMetadata
from services.rsm.keys import SegmentKeys, segment_keys
from services.rsm.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Location:
    """The one registered location. Its number is never given to another place.

    Attributes:
        prefix: of every key; empty or ending with a slash.
    """

    location_id: int
    backend: StorageBackend
    prefix: str

    def keys(self, metadata: RemoteLogSegmentMetadata) -> SegmentKeys:
        return segment_keys(self.prefix, metadata)

    def custom_metadata(self, metadata: RemoteLogSegmentMetadata) -> CustomMetadata | None:
        """What the copy answered; None: the caller has no answer, so it never finished.

        Raises:
            InvalidRequestError: not of a known version, or of a location that is not registered.
        """
        if metadata.custom_metadata is None:
            return None
        found = CustomMetadata.from_bytes(metadata.custom_metadata)
        registered = found.location_id == self.location_id
        require(registered, FIELD, f"location {found.location_id} is not registered")
        return found

    def read_manifest(self, keys: SegmentKeys) -> Manifest:
        """The manifest of a segment.

        Raises:
            RemoteResourceNotFoundError: no copy of it is complete.
            CorruptSegmentError: there is something else under its key.
        """
        return Manifest.from_bytes(self.backend.get(keys.manifest), keys.manifest)
