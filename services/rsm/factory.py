"""Build RSM's manager from its settings."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from services.rsm.active_copies import Waiter
from services.rsm.backends.kinds import Opening, store_kind
from services.rsm.backends.protocol import StorageBackend
from services.rsm.deadline import Limits
from services.rsm.directory_keys import DirectoryKeys, KeysError
from services.rsm.keys import KeyProvider, KeyRing
from services.rsm.locations import Location, Locations
from services.rsm.locations_file import (
    RegisteredLocation,
    current_location,
    keys_table,
    registered_locations,
)
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.metrics import MeasuredStorage, publish_part_buffers
from services.rsm.mirror_copy import lag_of
from services.rsm.mirrored import Failover, MirroredBackend
from services.rsm.probe import StoreProbe, StoreRule
from services.rsm.settings import UPLOAD_THREADS, RsmSettings
from services.rsm.startup import StartUp
from services.rsm.upload import PartBuffers
from services.rsm.verification import ReadVerification

# Longer than a client that uploads needs to fill a part, or a store to take one.
_BUFFER_TIMEOUT_MS = 60_000

# The digests of 8,000 small segments, or of a terabyte in large ones.
_DIGEST_CACHE_BYTES = 16 * 1024 * 1024
_log = logging.getLogger(__name__)


def build_manager(
    settings: RsmSettings, *, checked_first: bool = False
) -> ObjectRemoteStorageManager:
    """Build the manager that `settings` describe, without a request to the store.

    A process that listens before it checks the store needs `checked_first` (see StartUp).

    Raises:
        SystemExit: the file of the other locations, or one with a key, cannot be used.
    """
    waiter = Waiter()
    locations = build_locations(settings, waiter)
    buffers = PartBuffers(settings.part_buffers, settings.part_size_bytes, _BUFFER_TIMEOUT_MS)
    publish_part_buffers(buffers)
    verification = ReadVerification(settings.verify_reads, _DIGEST_CACHE_BYTES)
    limits = Limits(
        upload_rate_bytes_per_s=settings.upload_rate_bytes_per_s,
        fetch_rate_bytes_per_s=settings.fetch_rate_bytes_per_s,
        delete_rate_keys_per_s=settings.delete_rate_keys_per_s,
        delete_retries=settings.retries,
    )
    return ObjectRemoteStorageManager(
        locations,
        buffers,
        UPLOAD_THREADS,
        verification,
        limits,
        start_up=build_start_up(settings, locations, checked_first=checked_first),
        waiter=waiter,
        verify_writes=settings.verify_writes,
        direct_read_s=settings.direct_read_expiry_s if settings.direct_reads else 0,
    )


def build_locations(settings: RsmSettings, waiter: Waiter | None = None) -> Locations:
    """Build the current location, and those of RSM_LOCATIONS_FILE.

    Raises:
        SystemExit: the file, or one with a key, cannot be used.
    """
    waiter, ring = waiter or Waiter(), build_ring(settings)
    registered = registered_locations(settings)
    mirror_of = {each.mirror: each.id for each in registered if each.mirror is not None}
    stores = {each.id: _backend(settings, each, waiter) for each in registered}
    mirrored = {
        each.id: MirroredBackend(
            stores[each.id],
            stores[each.mirror],
            Failover(f"location {each.id} ({each})"),
            deletes=not next(m.is_read_only for m in registered if m.id == each.mirror),
        )
        for each in registered
        if each.mirror is not None
    }
    listed = [
        Location(
            each.id,
            MeasuredStorage(mirrored.get(each.id, stores[each.id])),
            each.prefix,
            str(each),
            each.foreign_layout(),
            each.is_read_only,
            ring,
            kind=each.backend,
            topics=each.topic_patterns(),
            transforms=each.transforms,
            mirror_of=mirror_of.get(each.id, 0),
            mirrored=mirrored.get(each.id),
            mirror_id=each.mirror or 0,
        )
        for each in registered
    ]
    current = next(each for each in listed if each.location_id == settings.location_id)
    others = [each for each in listed if each is not current]
    return Locations(current, others, [each for each in listed if each.topics])


def build_ring(settings: RsmSettings) -> KeyRing | None:
    """Build the ring of the file's [keys] without a request to Vault; None if it has none.

    Raises:
        SystemExit: the file, or the directory of the keys, cannot be used.
    """
    keys = keys_table(settings)
    if keys is None:
        return None
    provider: KeyProvider
    if keys.vault is not None:
        from services.rsm.vault_keys import VaultKeys  # Costs memory that few need.

        vault = keys.vault
        provider = VaultKeys(vault.address, vault.mount, vault.key, vault.token_file, vault.ca_file)
    else:
        try:
            provider = DirectoryKeys(keys.directory or Path())
        except KeysError as e:
            raise SystemExit(f"RSM_LOCATIONS_FILE: {settings.locations_file}: keys: {e}") from e
    return KeyRing(provider, settings.deployment_id)


def build_backend(settings: RsmSettings) -> StorageBackend:
    """Build the backend of the current location."""
    return _backend(settings, current_location(settings), Waiter())


def build_start_up(
    settings: RsmSettings,
    locations: Locations,
    now_s: Callable[[], float] = time.monotonic,
    *,
    checked_first: bool = False,
) -> StartUp:
    """Build the check of the store's owner and capabilities."""
    current = locations.current
    if not settings.deployment_id:
        text = (
            "RSM_DEPLOYMENT_ID is not set: %s is not marked, and nothing keeps another "
            "deployment from using it"
        )
        _log.warning(text, current)
    return StartUp(
        locations,
        _probe_of,
        settings.deployment_id,
        now_s,
        lambda: _rules_of(locations),
        marker_required=settings.marker_required,
        checked_first=checked_first,
    )


def _probe_of(location: Location) -> StoreProbe:
    return store_kind(location.kind).probe(location, _unmeasured(location))


def _unmeasured(location: Location) -> StorageBackend:
    """Return the backend itself: a probe sends requests that StorageBackend has not."""
    backend = location.backend
    if location.mirrored is not None:
        return location.mirrored.first
    return backend.backend if isinstance(backend, MeasuredStorage) else backend


def _rules_of(locations: Locations) -> list[StoreRule]:
    """Read what the store of each location does by itself."""
    rules = list[StoreRule]()
    for location in locations.all:
        where = str(location) if locations.others else ""
        rules += store_kind(location.kind).rules(location, _unmeasured(location), where)
        if location.mirrored is not None:
            rules.append(lag_of(location, time.time_ns() // 1_000_000))
    return rules


def _backend(settings: RsmSettings, location: RegisteredLocation, waiter: Waiter) -> StorageBackend:
    is_written = location.id == settings.location_id or bool(location.topics)
    return store_kind(location.backend).open(location, Opening(settings, waiter, is_written))
