"""A place for objects that RSM's settings name by a number."""

from dataclasses import dataclass

from services.api.errors import CorruptSegmentError
from services.api.segments import RemoteLogSegmentMetadata
from services.rsm.backends.protocol import StorageBackend
from services.rsm.keys import SegmentKeys, segment_keys
from services.rsm.manifest import Manifest


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
        manifest = Manifest.from_bytes(self.backend.get(keys.manifest), keys.manifest)
        if self.keys(manifest.metadata) != keys:
            segment = manifest.metadata.remote_log_segment_id
            raise CorruptSegmentError(
                f"{keys.manifest}: the manifest of another segment, {segment}"
            )
        return manifest
