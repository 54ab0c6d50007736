"""The contract suite across the wire, over MinIO."""

from collections.abc import Iterator

import pytest

from services.rpc.client.storage import RemoteStorageManagerClient
from services.rsm.factory import build_backend
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import (
    RemoteStorageManagerContract,
    StoredKeys,
)
from tests.contract.rsm_over_s3 import everything_in
from tests.harness.served import serving


class TestOverGrpcAndMinio(RemoteStorageManagerContract):
    @pytest.fixture
    def manager(self, settings: RsmSettings) -> Iterator[RemoteStorageManagerClient]:
        with serving(settings) as made:
            yield made.client

    @pytest.fixture
    def keys(self, settings: RsmSettings) -> StoredKeys:
        return everything_in(build_backend(settings), settings.prefix)
