"""The contract suite across the wire, over MinIO."""

from collections.abc import Iterator
from contextlib import closing

import grpc
import pytest

from services.local.seaweedfs import S3Endpoint
from services.rpc.client.storage import RemoteStorageManagerClient
from services.rsm.factory import build_backend, build_manager
from services.rsm.servicer import add_to_server
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import (
    RemoteStorageManagerContract,
    StoredKeys,
)
from tests.contract.rsm_over_s3 import everything_in, settings_for
from tests.harness.served import served


class TestOverGrpcAndMinio(RemoteStorageManagerContract):
    @pytest.fixture
    def settings(self, s3: S3Endpoint) -> RsmSettings:
        return settings_for(s3)

    @pytest.fixture
    def rsm(self, settings: RsmSettings) -> Iterator[RemoteStorageManagerClient]:
        with closing(build_manager(settings)) as manager:

            def add(server: grpc.Server) -> None:
                add_to_server(manager, server)

            with served(add, "tieredstorage.v1.RemoteStorageManager") as (channel, address):
                yield RemoteStorageManagerClient(channel, address)

    @pytest.fixture
    def stored_keys(self, settings: RsmSettings) -> StoredKeys:
        return everything_in(build_backend(settings), settings.prefix)
