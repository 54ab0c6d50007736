"""Wrap the data keys of segments under the ring's current key; only seals of manifests change."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from services.api.errors import (
    ConcurrentUpdateError,
    CorruptSegmentError,
    InvalidRequestError,
    NotServedError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    StoreAccessDeniedError,
)
from services.api.imported_segments import is_imported
from services.api.segment_objects import MAX_OBJECTS, KeysInUse, SegmentKey
from services.api.segments import RemoteLogSegmentMetadata
from services.api.validation import require
from services.rsm.deadline import require_wanted, within_deadline
from services.rsm.keys import KeyRing, RingStatus, WrappedKey
from services.rsm.layout import FIELD, CustomMetadata, Manifest
from services.rsm.locations import Location, Locations
from services.rsm.seals import Seal, join, seal_of

_NO_RING = RingStatus("", ())


@dataclass(frozen=True)
class KeyRewrap:
    """Rewrap the data keys of segments that RLMM's metadata names."""

    locations: Locations

    def rewrap(self, metadatas: Sequence[RemoteLogSegmentMetadata], *, dry_run: bool) -> KeysInUse:
        """See SegmentObjects.rewrap_keys."""
        require(len(metadatas) <= MAX_OBJECTS, "metadatas", f"at most {MAX_OBJECTS}")
        ring = self.locations.current.ring
        if ring is None and not dry_run:
            raise NotServedError("RSM has no ring of keys; set [keys] in RSM_LOCATIONS_FILE")
        status = _NO_RING if ring is None else ring.status()
        with within_deadline():
            outcomes = [self._outcome(each, None if dry_run else status) for each in metadatas]
        return KeysInUse(tuple(outcomes), status.current, tuple(status.ids), status.problem)

    def _outcome(
        self, metadata: RemoteLogSegmentMetadata, status: RingStatus | None
    ) -> SegmentKey | RemoteStorageError:
        try:
            require_wanted()
            if metadata.custom_metadata is None or is_imported(metadata.custom_metadata):
                segment = metadata.remote_log_segment_id
                raise InvalidRequestError(f"{FIELD}: {segment} has no copy of RSM's own")
            named = self.locations.named_by(metadata)
            assert named is not None
            if status is None:
                return _key_of(metadata, *named)
            return _rewrapped(metadata, *named, status.current)
        except RemoteStorageError as e:
            return e


def _key_of(
    metadata: RemoteLogSegmentMetadata, location: Location, custom: CustomMetadata
) -> SegmentKey:
    manifest, document, seal = location.stored_manifest(location.keys(metadata))
    if seal is None:
        _require_named(manifest, location, custom)
        return SegmentKey(location.location_id, "")
    problem, ring = "", location.ring
    try:
        if ring is not None:
            what = str(metadata.remote_log_segment_id)
            ring.require_unwraps(seal.wrapped_key, ring.use_of(manifest.key_use), what)
        elif manifest.stored is not None and manifest.stored.is_encrypted:
            location.data_key(manifest)
        location.authenticate(manifest, document, seal)
    except (CorruptSegmentError, StoreAccessDeniedError) as e:
        problem = str(e)
    return SegmentKey(location.location_id, seal.wrapped_key.key_id, problem=problem)


def _rewrapped(
    metadata: RemoteLogSegmentMetadata, location: Location, custom: CustomMetadata, current: str
) -> SegmentKey:
    ring, keys = location.ring, location.keys(metadata)
    assert ring is not None
    found = location.backend.describe(keys.manifest)  # Before it is read: see put_if_match.
    if found is None:
        raise RemoteResourceNotFoundError(f"{keys.manifest} in {location}: there is none")
    manifest, document, seal = location.stored_manifest(keys)
    if seal is None:
        sealed = _sealed(ring, manifest, document, location, custom)
    else:
        location.authenticate(manifest, document, seal)
        sealed = _with_current_keys(ring, manifest, seal, current)
    key_id = sealed.wrapped_key.key_id
    if sealed == seal:
        return SegmentKey(location.location_id, key_id)
    if location.read_only:
        raise InvalidRequestError(
            f"{FIELD}: {location} is read-only; rewrap it where it is written"
        )
    if not location.backend.put_if_match(keys.manifest, join(document, sealed), found.etag):
        raise ConcurrentUpdateError(f"{keys.manifest} in {location}: changed or deleted meanwhile")
    return SegmentKey(location.location_id, key_id, is_changed=True)


def _sealed(
    ring: KeyRing, manifest: Manifest, document: bytes, location: Location, custom: CustomMetadata
) -> Seal:
    """Return the seal of a manifest from before the ring, for which RLMM's metadata vouches."""
    _require_named(manifest, location, custom)
    use = ring.use_of(manifest.key_use)
    if use.deployment_id != ring.deployment_id:
        raise InvalidRequestError(
            f"{FIELD}: {location} has this copy of the deployment {use.deployment_id!r}, which "
            f"{ring.deployment_id!r} does not seal"
        )
    return seal_of(document, ring.new_key(use), None)


def _with_current_keys(ring: KeyRing, manifest: Manifest, seal: Seal, current: str) -> Seal:
    """Return the seal with its data keys wrapped under the current key.

    If that of the replaced copy cannot be unwrapped, it stays: nothing but readers that hold
    metadata from before the replacement need it.
    """
    use, what = ring.use_of(manifest.key_use), str(manifest.metadata.remote_log_segment_id)

    def rewrapped(wrapped: WrappedKey, attempt: str) -> WrappedKey:
        if wrapped.key_id == current:
            return wrapped
        return ring.rewrapped(wrapped, replace(use, attempt=attempt), what)

    replaced = seal.replaced_wrapped_key
    if replaced is not None and manifest.metadata.custom_metadata is not None:
        before = CustomMetadata.from_bytes(manifest.metadata.custom_metadata)
        with suppress(CorruptSegmentError, StoreAccessDeniedError):
            replaced = rewrapped(replaced, before.attempt)
    return seal.with_keys(rewrapped(seal.wrapped_key, use.attempt), replaced)


def _require_named(manifest: Manifest, location: Location, custom: CustomMetadata) -> None:
    if manifest.custom_metadata(location.location_id) != custom:
        raise CorruptSegmentError(
            f"{location.keys(manifest.metadata).manifest} in {location}: the manifest has no seal, "
            "and is not the one that the segment's metadata names"
        )
