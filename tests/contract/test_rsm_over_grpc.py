"""Run the RSM suite over the gRPC client."""

from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from services.api.errors import CorruptSegmentError, RemoteResourceNotFoundError
from services.api.remote_storage_manager import IndexType
from services.rpc.client.storage import RemoteStorageManagerClient
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.settings import RsmSettings
from tests.contract import wire_cases
from tests.contract.remote_storage_manager_contract import (
    MIB,
    Files,
    RemoteStorageManagerContract,
    StoredKeys,
    copied,
)
from tests.harness.served import serving
from tests.harness.stores import keys_in


class TestOverGrpc(RemoteStorageManagerContract):
    wire_cases = wire_cases.RSM

    @pytest.fixture
    def manager(self, tmp_path: Path) -> Iterator[RemoteStorageManagerClient]:
        settings = RsmSettings(backend="filesystem", directory=tmp_path, part_size_bytes=5 * MIB)
        with serving(settings) as made:
            yield made.client

    @pytest.fixture
    def keys(self, tmp_path: Path) -> StoredKeys:
        backend = FilesystemStorage(tmp_path)

        def listed() -> Collection[str]:
            return [
                *keys_in(backend, ""),
                *(f"{u.key} (unfinished)" for u in backend.list_uploads("")),
            ]

        return listed

    def test_an_index_is_asked_for_as_it_is_stored(
        self, manager: RemoteStorageManagerClient, tmp_path: Path
    ) -> None:
        """Else RSM tries to rebuild it, here from a log that has no batches."""
        segment = copied(manager, Files(b"no batches"))
        (path,) = tmp_path.rglob("*.indexes")
        path.unlink()
        with pytest.raises(CorruptSegmentError, match="cannot be rebuilt: "):
            list(manager.fetch_index(segment, IndexType.OFFSET))
        with pytest.raises(RemoteResourceNotFoundError):
            list(manager.fetch_index(segment, IndexType.OFFSET, as_stored=True))
