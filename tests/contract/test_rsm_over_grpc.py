"""Run the RSM suite over the gRPC client."""

from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from services.rpc.client.storage import RemoteStorageManagerClient
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.factory import build_manager
from services.rsm.servicer import add_to_server
from services.rsm.settings import RsmSettings
from tests.contract import wire_cases
from tests.contract.remote_storage_manager_contract import (
    MIB,
    RemoteStorageManagerContract,
    StoredKeys,
)
from tests.harness.served import served


class TestOverGrpc(RemoteStorageManagerContract):
    wire_cases = wire_cases.RSM

    @pytest.fixture
    def rsm(self, tmp_path: Path) -> Iterator[RemoteStorageManagerClient]:
        settings = RsmSettings(backend="filesystem", directory=tmp_path, part_size_bytes=5 * MIB)
        with closing(build_manager(settings)) as manager:

            def add(server: grpc.Server) -> None:
                add_to_server(manager, server)

            with served(add, "tieredstorage.v1.RemoteStorageManager") as (channel, address):
                yield RemoteStorageManagerClient(channel, address)

    @pytest.fixture
    def stored_keys(self, tmp_path: Path) -> StoredKeys:
        backend = FilesystemStorage(tmp_path)

        def keys() -> Collection[str]:
            return [
                *backend.list_keys(""),
                *(f"{u.key} (unfinished)" for u in backend.list_uploads("")),
            ]

        return keys
