"""Define the current location, and the registry of the others."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

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
from services.rsm.keys import DataKey, KeyRing, missing_key
from services.rsm.layout import (
    FIELD,
    CustomMetadata,
    Manifest,
    SegmentKeys,
    key_use,
    segment_keys,
)
from services.rsm.mirrored import MirroredBackend
from services.rsm.seals import Seal, join, require_authentic, seal_of, split
from services.rsm.transforms import NO_TRANSFORMS, TransformPolicy


@dataclass(frozen=True, slots=True)
class Location:
    """One registered location. Its number is never given to another place.

    Attributes:
        prefix: of every key; empty or ending with a slash.
        place: the place in words, for messages; never contains a credential.
        layout: of the objects that another tiered storage wrote; None: they are RSM's own.
        read_only: objects are never deleted.
        ring: authenticates the manifests; None: they are written without a seal, and a seal of
            theirs is not checked.
        kind: the name of its kind of store.
        mirror_of: the number of the location of which this one is the mirror; 0: of none.
        mirror_id: the number of its mirror; 0: it has none.
        mirrored: its store and that of its mirror; None: it has no mirror.
        topics: patterns of the topics whose segments are copied here; each matches a whole name.
        transforms: of the chunks of new copies.
    """

    location_id: int
    backend: StorageBackend
    prefix: str
    place: str = ""
    layout: ForeignLayout | None = None
    read_only: bool = False
    ring: KeyRing | None = None
    kind: str = ""
    topics: tuple[re.Pattern[str], ...] = ()
    transforms: TransformPolicy = NO_TRANSFORMS
    mirror_of: int = 0
    mirrored: MirroredBackend | None = None
    mirror_id: int = 0

    @property
    def is_away(self) -> bool:
        """Return whether the store does not answer, so that the mirror is read."""
        return self.mirrored is not None and self.mirrored.failover.is_away

    @property
    def number_in_metadata(self) -> int:
        """Return the number by which metadata names the copies that are here."""
        return self.mirror_of or self.location_id

    def __str__(self) -> str:
        return f"location {self.location_id} ({self.place or f'prefix {self.prefix!r}'})"

    def keys(self, metadata: RemoteLogSegmentMetadata) -> SegmentKeys:
        return segment_keys(self.prefix, metadata)

    def read_manifest(self, keys: SegmentKeys, *, unsealed_too: bool = False) -> Manifest:
        """Read the manifest of a segment, and authenticate it if the location has a ring.

        Args:
            unsealed_too: also return a manifest without a seal, which the caller must not rely on
                unless its digest is that of a segment's custom metadata in RLMM.

        Raises:
            RemoteResourceNotFoundError: the location has no complete copy.
            CorruptSegmentError: the object under its key is something else, or not authentic.
            StoreAccessDeniedError: the ring lacks the key of the manifest.
        """
        manifest, document, seal = self.stored_manifest(keys)
        if seal is not None:
            self.authenticate(manifest, document, seal)
        elif not unsealed_too:
            self._require_sealed(manifest, f"{keys.manifest} in {self}")
        return manifest

    def stored_manifest(self, keys: SegmentKeys) -> tuple[Manifest, bytes, Seal | None]:
        """Read a manifest, not authenticated, with its document and its seal if it has one.

        Raises:
            RemoteResourceNotFoundError: the location has no complete copy.
            CorruptSegmentError: the object under its key is something else.
        """
        name = f"{keys.manifest} in {self}"
        document, seal = split(self.backend.get(keys.manifest), name)
        manifest = Manifest.from_bytes(document, name)
        if self.keys(manifest.metadata) != keys:
            segment = manifest.metadata.remote_log_segment_id
            raise CorruptSegmentError(f"{name}: the manifest of another segment, {segment}")
        if seal is None:
            return manifest, document, None
        wrapped, replaced = seal.wrapped_key, seal.replaced_wrapped_key
        manifest = replace(manifest, wrapped_key=wrapped, replaced_wrapped_key=replaced)
        return manifest, document, seal

    def read_manifest_of(self, keys: SegmentKeys, custom: CustomMetadata) -> Manifest:
        """Read the manifest of the copy that `custom` describes, also if another copy replaced it.

        Raises as read_manifest does.
        """
        manifest = self.read_manifest(keys, unsealed_too=True)
        name = f"{keys.manifest} in {self}"
        of_copy = manifest.of_copy(custom)
        if of_copy is None:
            raise CorruptSegmentError(
                f"{name} is not the manifest that the metadata of attempt "
                f"{custom.attempt} was written with: it describes attempt {manifest.attempt}"
            )
        if of_copy is not manifest:  # The digest in `custom` is of the manifest before it.
            self._require_sealed(manifest, name)
        return of_copy

    def new_key(self, metadata: RemoteLogSegmentMetadata, attempt: str) -> DataKey | None:
        """Make the data key of a copy that begins; None if the location has no ring.

        Raises:
            RetriableRemoteStorageError, StoreAccessDeniedError: the ring's provider is away, or
                refuses RSM.
        """
        if self.ring is None:
            return None
        return self.ring.new_key(key_use(self.ring.deployment_id, metadata, attempt))

    def data_key(self, manifest: Manifest) -> DataKey | None:
        """Return the data key of a copy; None if its manifest has none.

        Raises:
            StoreAccessDeniedError: the location has no ring, or its ring lacks the key.
        """
        wrapped, what = manifest.wrapped_key, self._naming(manifest)
        if wrapped is None:
            return None
        if self.ring is None:
            raise missing_key(wrapped, what, "RSM has no ring")
        return self.ring.data_key(wrapped, self.ring.use_of(manifest.key_use), what)

    def manifest_bytes(self, manifest: Manifest) -> bytes:
        """Return a manifest as it is stored: with a seal if it has a data key."""
        document, key = manifest.to_bytes(), self.data_key(manifest)
        seal = None if key is None else seal_of(document, key, manifest.replaced_wrapped_key)
        return join(document, seal)

    def authenticate(self, manifest: Manifest, document: bytes, seal: Seal) -> None:
        """Check, if the location has a ring, that this deployment wrote a manifest.

        That of a read-only location may be another deployment's. Raises as read_manifest does.
        """
        key, what = None if self.ring is None else self.data_key(manifest), self._naming(manifest)
        if self.ring is None or key is None:
            return
        require_authentic(document, seal, key, what)
        ours = self.ring.deployment_id
        if manifest.deployment_id not in ("", ours) and not self.read_only:
            raise CorruptSegmentError(
                f"{what}: the manifest is of the deployment {manifest.deployment_id!r}, and fails "
                f"its authentication as one of {ours!r}"
            )

    def _naming(self, manifest: Manifest) -> str:
        segment = manifest.metadata.remote_log_segment_id
        return f"{segment}: {self.keys(manifest.metadata).manifest} in {self}"

    def _require_sealed(self, manifest: Manifest, name: str) -> None:
        """Check that a manifest has a seal, or that the location has no ring.

        Raises:
            CorruptSegmentError: nothing vouches for it.
        """
        if self.ring is not None and manifest.wrapped_key is None:
            raise CorruptSegmentError(
                f"{name}: the manifest has no seal, and no metadata of RLMM was given that vouches "
                "for it; `sediment keys rewrap` seals those that RLMM vouches for"
            )


class Locations:
    """The allow-list of places. Callers name a place by its number only, or not at all."""

    def __init__(
        self,
        current: Location,
        others: Sequence[Location] = (),
        matched: Sequence[Location] = (),
    ) -> None:
        """Register the locations; no two may have the same number.

        Args:
            others: read and deleted from; those without topics are never written to.
            matched: those with topics, in the order in which a topic is matched.
        """
        self.current = current
        self.matched = tuple(matched)
        self.written = tuple(dict.fromkeys((current, *matched)))
        self.others = tuple(each for each in others if not (each.layout or each.read_only))
        self._by_id = {location.location_id: location for location in (current, *others)}

    @property
    def all(self) -> Sequence[Location]:
        """Return the locations of this deployment, the current one first.

        What belongs to others, in another layout or read-only, is only read by its number: it has
        no marker of ours, and is not searched for objects.
        """
        return (self.current, *self.others)

    def to_copy_to(self, metadata: RemoteLogSegmentMetadata, *, replaces: bool) -> Location:
        """Return where a copy goes: the first location that matches its topic, or the current.

        A copy that replaces another one goes to the location of that one, if it is written.
        """
        if replaces and metadata.custom_metadata is not None:
            replaced_id = CustomMetadata.from_bytes(metadata.custom_metadata).location_id
            there = (each for each in self.written if each.location_id == replaced_id)
            return next(there, self.current)
        topic = metadata.topic_id_partition.topic
        for location in self.matched:
            if any(pattern.fullmatch(topic) for pattern in location.topics):
                return location
        return self.current

    @property
    def sources(self) -> Sequence[Location]:
        """Return the locations of this deployment that are no mirrors.

        What a mirror alone has may be deleted: it never makes a segment.
        """
        return [each for each in self.all if not each.mirror_of]

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
        for location in self.sources:
            try:
                manifest = location.read_manifest(location.keys(metadata))
            except RemoteResourceNotFoundError:
                continue
            return location, manifest.custom_metadata(location.location_id)
        segment = metadata.remote_log_segment_id
        raise RemoteResourceNotFoundError(f"{segment}: no location has a complete copy")
