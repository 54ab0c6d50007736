"""Provide RSM over the S3 server of this run: settings, stored objects, a recording proxy."""

from collections.abc import Iterator

import pytest

from services.local.seaweedfs import S3Endpoint
from services.rsm.backends.protocol import StorageBackend
from services.rsm.factory import build_backend
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import StoredKeys
from tests.contract.rsm_over_s3 import everything_in, settings_for
from tests.harness.http_proxy import HttpProxy
from tests.harness.s3_operations import s3_operation


@pytest.fixture
def settings(s3: S3Endpoint) -> RsmSettings:
    return settings_for(s3)


@pytest.fixture
def backend(settings: RsmSettings) -> StorageBackend:
    return build_backend(settings)


@pytest.fixture
def stored_keys(backend: StorageBackend, settings: RsmSettings) -> StoredKeys:
    return everything_in(backend, settings.prefix)


@pytest.fixture
def proxy(s3: S3Endpoint) -> Iterator[HttpProxy]:
    with HttpProxy(s3.endpoint, s3_operation) as running:
        yield running
