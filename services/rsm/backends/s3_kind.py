"""Open S3 stores with the credentials that the settings or a location name."""

from collections.abc import Sequence
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
from services.rsm.backends.kinds import LocationEntry, Opening, StoreKind, proxy_credentials
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
from services.rsm.backends.s3_policy import S3Policy
from services.rsm.backends.s3_probe import S3Probe
from services.rsm.backends.s3_rules import rules_of
from services.rsm.backends.traced_pools import TRACED_POOLS
from services.rsm.digests import MANIFEST_THREADS
from services.rsm.locations import Location
from services.rsm.probe import StoreProbe, StoreRule
from services.rsm.settings import UPLOAD_THREADS, RsmSettings

_SESSION_NAME = "sediment-rsm"
"""What the store's own audit log calls a session of RSM."""


class S3Kind(StoreKind):
    """S3 and what speaks its protocol."""

    needs = ("endpoint", "region", "bucket")
    has_urls = True
    takes_proxy = True

    def open(self, entry: LocationEntry, opening: Opening) -> StorageBackend:
        settings = opening.settings
        assert isinstance(entry, S3Policy)
        proxy = Proxy(entry.proxy, proxy_credentials(entry, opening)) if entry.proxy else None
        http = _http(settings, opening.waiter, proxy)
        target = S3Target(
            endpoint=entry.endpoint,
            secure=entry.secure,
            region=entry.region,
            bucket=entry.bucket,
            credentials=_credentials_of(settings, entry, http),
            sign_payload=not entry.secure,
            public_endpoint=entry.public_endpoint,
            write_headers=entry.write_headers(),
        )
        return S3Storage(http, target, entry.prefix, writes=opening.writes)

    def probe(self, location: Location, store: StorageBackend) -> StoreProbe:
        assert isinstance(store, S3Storage)
        return S3Probe(location, store)

    def rules(self, location: Location, store: StorageBackend, where: str) -> Sequence[StoreRule]:
        assert isinstance(store, S3Storage)
        return rules_of(store.requests, location.prefix, where)


def _credentials_of(
    settings: RsmSettings, location: LocationEntry, http: PoolManager
) -> StoreCredentials:
    """Read the credentials from the location's files, or use RSM's own."""
    if location.access_key_file is not None and location.secret_key_file is not None:
        return _file_credentials(location.access_key_file, location.secret_key_file)
    own = _own_credentials(settings, http)
    if own is None:
        raise SystemExit(
            f"RSM_LOCATIONS_FILE: {settings.locations_file}: location {location.id} needs "
            "access_key_file and secret_key_file: RSM itself has no S3 credentials"
        )
    return own


def _http(settings: RsmSettings, waiter: Waiter, proxy: Proxy | None) -> PoolManager:
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
    if settings.backend != "s3":
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
