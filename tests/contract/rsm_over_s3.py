"""Share the basics of the tests of RSM over a real S3 store."""

import secrets
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from services.local.seaweedfs import S3Endpoint
from services.rsm.backends.contract import NetworkBackendContract
from services.rsm.backends.protocol import StorageBackend
from services.rsm.factory import build_backend
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import MIB, StoredKeys
from tests.harness.stores import keys_in

PART = 5 * MIB
# One for all, since the first object of a bucket takes seconds; each test has its own prefix.
_BUCKET = "rsm-in-process"


def settings_for(s3: S3Endpoint, changes: Mapping[str, Any] | None = None) -> RsmSettings:
    """Return settings for an empty prefix of an existing bucket, without retries.

    The timeouts must tolerate a store that pauses for some seconds.
    """
    s3.ensure_bucket(_BUCKET)
    values = {
        "backend": "s3",
        "endpoint": s3.endpoint,
        "region": s3.region,
        "access_key": SecretStr(s3.access_key),
        "secret_key": SecretStr(s3.secret_key),
        "bucket": _BUCKET,
        "prefix": f"{secrets.token_hex(8)}/",
        "secure": s3.secure,
        "part_size_bytes": PART,
        "connect_timeout_ms": 60_000,
        "retries": 0,
    }
    return RsmSettings(**{**values, **(changes or {})})


def everything_in(backend: StorageBackend, prefix: str) -> StoredKeys:
    """Return a function that lists the objects and the unfinished uploads below `prefix`."""

    def stored_keys() -> Collection[str]:
        uploads = [f"{upload.key} (unfinished)" for upload in backend.list_uploads(prefix)]
        return [*keys_in(backend, prefix), *uploads]

    return stored_keys


def with_properties(settings: RsmSettings, folder: Path, properties: str) -> RsmSettings:
    """Return settings whose RSM_LOCATIONS_FILE gives the current location these properties."""
    names = ("endpoint", "region", "bucket") if settings.backend == "s3" else ("directory",)
    place = "".join(f'{name} = "{getattr(settings, name)}"\n' for name in names)
    entry = f'id = {settings.location_id}\nbackend = "{settings.backend}"\n{place}'
    file = folder / "locations.toml"
    file.write_text(f'[[location]]\n{entry}prefix = "{settings.prefix}"\n{properties}\n')
    return settings.model_copy(update={"locations_file": file})


class BackendOfSettings(NetworkBackendContract):
    """Of the store that the fixture `settings` describes."""

    @pytest.fixture
    def prefix(self, settings: RsmSettings) -> str:
        return settings.prefix

    @pytest.fixture
    def backend(self, settings: RsmSettings) -> StorageBackend:
        return build_backend(settings)

    @pytest.fixture
    def another(self, settings: RsmSettings) -> StorageBackend:
        return build_backend(settings)
