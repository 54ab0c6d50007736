"""Open Google Cloud Storage and Azure Blob Storage with the credentials of each cloud."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore

from services.common.bounded_file import MAX_PEM_BYTES, SecretFileError, read_bounded, read_secret
from services.rsm.backends.kinds import LocationEntry, Opening, StoreKind, proxy_credentials
from services.rsm.backends.object_store import ObjectStorage
from services.rsm.backends.protocol import StorageBackend
from services.rsm.locations import Location
from services.rsm.probe import REQUIRED, Capability, RuleLevel, Step, StoreProbe, StoreRule

if TYPE_CHECKING:
    from obstore.store import AzureConfig, ClientConfig, GCSConfig, RetryConfig

# A body may take as long as its reader; a silent store ends it after RSM_READ_TIMEOUT_MS.
_BODY = timedelta(days=1)
# The machine's own, which no proxy reaches.
_IDENTITY_SERVICES = "169.254.169.254,metadata.google.internal"


class CloudProbe(StoreProbe):
    """Probe a store whose unfinished uploads RSM cannot list, and never has to end later."""

    required = REQUIRED - {Capability.UPLOAD_LISTING}

    def steps(self) -> dict[Capability, Step]:
        steps = super().steps()
        del steps[Capability.UPLOAD_LISTING]
        return steps


class _CloudKind(StoreKind):
    has_urls = True
    takes_proxy = True

    def probe(self, location: Location, store: StorageBackend) -> StoreProbe:
        return CloudProbe(location)

    def rules(self, location: Location, store: StorageBackend, where: str) -> Sequence[StoreRule]:
        begin = f"{where}: " if where else ""
        text = f"{begin}{self.asked}; whether the lifecycle deletes or archives is not read here"
        return [StoreRule(RuleLevel.UNKNOWN, text)]

    asked: str


class GcsKind(_CloudKind):
    """Google Cloud Storage."""

    options: ClassVar = {
        "service_account_file": "JSON key of a service account. Else: application default "
        "credentials (GOOGLE_APPLICATION_CREDENTIALS, workload identity, the metadata server)",
        "ca_file": "certificates of the authorities that the store's certificate may be from",
    }
    asked = "RSM cannot list unfinished uploads: have a rule AbortIncompleteMultipartUpload"

    def open(self, entry: LocationEntry, opening: Opening) -> StorageBackend:
        config: GCSConfig = {"bucket": entry.bucket}
        if entry.endpoint:
            config["base_url"] = _url(entry)
        if file := entry.options.get("service_account_file"):
            config["service_account_key"] = _text(entry, "service_account_file", file).decode()
        return _storage(entry, opening, partial(GCSStore, config=config))


class AzureKind(_CloudKind):
    """Azure Blob Storage: `endpoint` is ACCOUNT.blob.core.windows.net, `bucket` a container."""

    needs = ("endpoint", "bucket")
    options: ClassVar = {
        "account": "storage account, if it is not the first label of `endpoint`: then it begins "
        "the path of every URL",
        "account_key_file": "key of the account",
        "sas_file": "shared access signature",
        "client_id": "of a workload identity, or of a managed identity assigned by the user",
        "tenant_id": "of a workload identity",
        "federated_token_file": "token of a workload identity. Without any of these files: the "
        "variables AZURE_* of the pod, else the managed identity of the machine",
        "ca_file": "certificates of the authorities that the store's certificate may be from",
    }
    asked = "Azure deletes the parts of unfinished uploads after a week"

    def place(self, entry: LocationEntry) -> tuple[str, ...]:
        return (*super().place(entry), entry.options.get("account", ""))

    def open(self, entry: LocationEntry, opening: Opening) -> StorageBackend:
        account = entry.options.get("account")
        config: AzureConfig = {
            "account_name": account or entry.endpoint.partition(".")[0],
            "endpoint": f"{_url(entry)}/{account}" if account else _url(entry),
            "container_name": entry.bucket,
        }
        if file := entry.options.get("account_key_file"):
            config["account_key"] = _secret(entry, "account_key_file", file)
            config["credential_type"] = "access_key"
        elif file := entry.options.get("sas_file"):
            config["sas_key"] = _secret(entry, "sas_file", file)
            config["credential_type"] = "sas_token"
        elif file := entry.options.get("federated_token_file"):
            config["federated_token_file"] = file
            config["credential_type"] = "workload_identity"
        if "client_id" in entry.options:
            config["client_id"] = entry.options["client_id"]
        if "tenant_id" in entry.options:
            config["tenant_id"] = entry.options["tenant_id"]
        return _storage(entry, opening, partial(AzureStore, config=config))


def _storage(
    entry: LocationEntry, opening: Opening, store: Callable[..., GCSStore | AzureStore]
) -> StorageBackend:
    try:
        opened = store(client_options=_client(entry, opening), retry_config=_retries(opening))
    except (BaseError, ValueError) as e:
        # The library's text may quote a key.
        raise SystemExit(
            f"location {entry.id}: {type(e).__name__}: the options of the location, or the "
            "variables of the environment for this cloud, cannot be used; correct them"
        ) from None
    return ObjectStorage(opened, entry.bucket, opening.settings.part_size_bytes)


def _url(entry: LocationEntry) -> str:
    return f"{'https' if entry.secure else 'http'}://{entry.endpoint}"


def _client(entry: LocationEntry, opening: Opening) -> "ClientConfig":
    settings = opening.settings
    client: ClientConfig = {
        "allow_http": not entry.secure,
        "connect_timeout": timedelta(milliseconds=settings.connect_timeout_ms),
        "read_timeout": timedelta(milliseconds=settings.read_timeout_ms),
        "timeout": _BODY,
    }
    if file := entry.options.get("ca_file"):
        client["root_certificate"] = _text(entry, "ca_file", file)
    if entry.proxy:
        user, _, password = (proxy_credentials(entry, opening) or "").partition(":")
        login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user else ""
        client["proxy_url"] = entry.proxy.replace("://", f"://{login}")
        client["proxy_excludes"] = _IDENTITY_SERVICES
    return client


def _retries(opening: Opening) -> "RetryConfig":
    settings = opening.settings
    most_ms = settings.read_timeout_ms * (settings.retries + 1)
    return {
        "max_retries": settings.retries,
        "retry_timeout": timedelta(milliseconds=most_ms),
        "backoff": {"init_backoff": timedelta(seconds=0.2), "max_backoff": timedelta(seconds=2)},
    }


def _secret(entry: LocationEntry, option: str, file: str) -> str:
    try:
        return read_secret(Path(file))
    except SecretFileError as e:
        raise SystemExit(f"location {entry.id}, options.{option}: {e}") from None


def _text(entry: LocationEntry, option: str, file: str) -> bytes:
    """Read a file of several lines."""
    try:
        return read_bounded(Path(file), MAX_PEM_BYTES)
    except OSError as e:
        raise SystemExit(f"location {entry.id}, options.{option}: {file}: {e.strerror}") from None
