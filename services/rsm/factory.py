"""Build RSM's manager from its settings."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from minio.credentials.credentials import Credentials
from minio.credentials.providers import (
    AssumeRoleProvider,
    AWSConfigProvider,
    ChainedProvider,
    EnvAWSProvider,
    IamAwsProvider,
    Provider,
    WebIdentityProvider,
)
from urllib3 import PoolManager

from services.common.bounded_file import SecretFileError, read_secret
from services.rsm.active_copies import Waiter
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.backends.protocol import StorageBackend
from services.rsm.backends.s3 import S3Storage
from services.rsm.backends.s3_answers import BOUNDED_POOLS
from services.rsm.backends.s3_credentials import (
    FileCredentials,
    FixedCredentials,
    SdkCredentials,
    StoreCredentials,
)
from services.rsm.backends.s3_http import Proxy, S3Target, http_pool
from services.rsm.backends.s3_probe import S3Probe
from services.rsm.backends.s3_rules import rules_of
from services.rsm.backends.traced_pools import TRACED_POOLS
from services.rsm.deadline import Limits
from services.rsm.digests import MANIFEST_THREADS
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
from services.rsm.probe import StoreProbe, StoreRule
from services.rsm.settings import UPLOAD_THREADS, RsmSettings
from services.rsm.startup import StartUp
from services.rsm.upload import PartBuffers
from services.rsm.verification import ReadVerification

_SESSION_NAME = "sediment-rsm"
"""What the store's own audit log calls a session of RSM."""

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
    stores, ring = _Stores(settings, waiter or Waiter()), build_ring(settings)
    listed = [
        Location(
            each.id,
            MeasuredStorage(stores.of(each)),
            each.prefix,
            str(each),
            each.foreign_layout(),
            each.is_read_only,
            ring,
        )
        for each in registered_locations(settings)
    ]
    current = next(each for each in listed if each.location_id == settings.location_id)
    return Locations(current, [each for each in listed if each is not current])


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
    return _Stores(settings, Waiter()).of(current_location(settings))


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
    store = _unmeasured(current)
    probe = S3Probe(current, store) if isinstance(store, S3Storage) else StoreProbe(current)
    return StartUp(
        locations,
        probe,
        settings.deployment_id,
        now_s,
        lambda: _rules_of(locations),
        marker_required=settings.marker_required,
        checked_first=checked_first,
    )


def _unmeasured(location: Location) -> StorageBackend:
    """Return the backend itself: a probe sends requests that StorageBackend has not."""
    backend = location.backend
    return backend.backend if isinstance(backend, MeasuredStorage) else backend


def _rules_of(locations: Locations) -> list[StoreRule]:
    """Read what the store of each location does by itself; a file system does nothing."""
    rules = list[StoreRule]()
    for location in locations.all:
        store, where = _unmeasured(location), str(location) if locations.others else ""
        if isinstance(store, S3Storage):
            rules += rules_of(store.requests, location.prefix, where)
    return rules


class _Stores:
    """Builds the backends of one process, which share connections, retries and RSM's own keys."""

    def __init__(self, settings: RsmSettings, waiter: Waiter) -> None:
        self._settings = settings
        self._waiter = waiter
        self._http = _http(settings, waiter)
        self._own = _own_credentials(settings, self._http)

    def of(self, location: RegisteredLocation) -> StorageBackend:
        """Build the backend of a location, without a request to its store."""
        if location.backend == "filesystem":
            return FilesystemStorage(location.directory or Path())
        target = S3Target(
            endpoint=location.endpoint,
            secure=location.secure,
            region=location.region,
            bucket=location.bucket,
            credentials=_credentials_of(self._settings, location, self._own),
            sign_payload=not location.secure,
            public_endpoint=location.public_endpoint,
            write_headers=location.write_headers(),
        )
        proxy = _proxy_of(self._settings, location)
        http = self._http if proxy is None else _http(self._settings, self._waiter, proxy)
        is_current = location.id == self._settings.location_id
        return S3Storage(http, target, location.prefix, writes=is_current)


def _proxy_of(settings: RsmSettings, location: RegisteredLocation) -> Proxy | None:
    if not location.proxy:
        return None
    file = location.proxy_credentials_file
    try:
        return Proxy(location.proxy, None if file is None else read_secret(file))
    except SecretFileError as e:
        what = f"RSM_LOCATIONS_FILE: {settings.locations_file}: location {location.id}"
        raise SystemExit(f"{what}, proxy_credentials_file: {e}") from None


def _credentials_of(
    settings: RsmSettings, location: RegisteredLocation, own: StoreCredentials | None
) -> StoreCredentials:
    """Read the credentials from the location's files, or use RSM's own."""
    if location.access_key_file is not None and location.secret_key_file is not None:
        return _file_credentials(location.access_key_file, location.secret_key_file)
    if own is None:
        raise SystemExit(
            f"RSM_LOCATIONS_FILE: {settings.locations_file}: location {location.id} needs "
            "access_key_file and secret_key_file: RSM itself has no S3 credentials"
        )
    return own


def _http(settings: RsmSettings, waiter: Waiter, proxy: Proxy | None = None) -> PoolManager:
    return http_pool(
        # One for each thread that may use the store.
        connections=(
            UPLOAD_THREADS
            + MANIFEST_THREADS
            + settings.copy_threads
            + settings.stream_threads
            + settings.unary_threads
        ),
        connect_timeout_ms=settings.connect_timeout_ms,
        read_timeout_ms=settings.read_timeout_ms,
        retries=settings.retries,
        waiter=waiter,
        pools=BOUNDED_POOLS if settings.traces_endpoint is None else TRACED_POOLS,
        proxy=proxy,
    )


def _own_credentials(settings: RsmSettings, http: PoolManager) -> StoreCredentials | None:
    """Return the credentials of RSM_CREDENTIALS; None if the current location needs none.

    `http` is for those of an STS.
    """
    if settings.backend == "filesystem":
        return None
    source = settings.credentials
    if source == "environment":
        keys = settings.access_key.get_secret_value(), settings.secret_key.get_secret_value()
        return FixedCredentials(Credentials(*keys))
    if source == "aws":
        return SdkCredentials("the AWS environment", lambda: _aws_provider(http))
    sts = f"the STS at {settings.sts_endpoint}"
    if source == "web-identity":
        return SdkCredentials(sts, lambda: _web_identity_provider(settings, http))
    assert settings.access_key_file is not None
    assert settings.secret_key_file is not None
    files = _file_credentials(
        settings.access_key_file, settings.secret_key_file, settings.session_token_file
    )
    if source == "files":
        return files
    return SdkCredentials(sts, lambda: _assume_role_provider(settings, files.retrieve(), http))


def _file_credentials(
    access_key: Path, secret_key: Path, session_token: Path | None = None
) -> FileCredentials:
    try:
        return FileCredentials(access_key, secret_key, session_token)
    except SecretFileError as e:
        raise SystemExit(f"files of the access key, secret key or session token: {e}") from None


def _aws_provider(http: PoolManager) -> Provider:
    return ChainedProvider(
        [EnvAWSProvider(), AWSConfigProvider(), IamAwsProvider(http_client=http)]
    )


def _web_identity_provider(settings: RsmSettings, http: PoolManager) -> Provider:
    def token() -> dict[str, str]:
        assert settings.web_identity_token_file is not None
        return {"access_token": read_secret(settings.web_identity_token_file).strip()}

    return WebIdentityProvider(
        jwt_provider_func=token,
        sts_endpoint=settings.sts_endpoint,
        role_arn=settings.role_arn or None,
        role_session_name=_SESSION_NAME,
        http_client=http,
    )


def _assume_role_provider(settings: RsmSettings, keys: Credentials, http: PoolManager) -> Provider:
    return AssumeRoleProvider(
        sts_endpoint=settings.sts_endpoint,
        access_key=keys.access_key,
        secret_key=keys.secret_key,
        region=settings.region,
        role_arn=settings.role_arn or None,
        role_session_name=_SESSION_NAME,
        http_client=http,
    )
