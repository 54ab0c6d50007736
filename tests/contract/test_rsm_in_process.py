"""Run the RSM suite in process over each kind of store."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from services.local.seaweedfs import S3Endpoint
from services.rsm.factory import build_backend, build_manager
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import (
    RemoteStorageManagerContract,
    StoredKeys,
)
from tests.contract.rsm_over_s3 import PART, everything_in, settings_for


class TestOverFilesystem(RemoteStorageManagerContract):
    @pytest.fixture
    def settings(self, tmp_path: Path) -> RsmSettings:
        return RsmSettings(backend="filesystem", directory=tmp_path, part_size_bytes=PART)

    @pytest.fixture
    def manager(self, settings: RsmSettings) -> Iterator[ObjectRemoteStorageManager]:
        with closing(build_manager(settings)) as manager:
            yield manager

    @pytest.fixture
    def keys(self, settings: RsmSettings) -> StoredKeys:
        return everything_in(build_backend(settings), settings.prefix)


class TestOverS3(RemoteStorageManagerContract):
    @pytest.fixture
    def settings(self, s3: S3Endpoint) -> RsmSettings:
        return settings_for(s3)

    @pytest.fixture
    def manager(self, settings: RsmSettings) -> Iterator[ObjectRemoteStorageManager]:
        with closing(build_manager(settings)) as manager:
            yield manager

    @pytest.fixture
    def keys(self, settings: RsmSettings) -> StoredKeys:
        return everything_in(build_backend(settings), settings.prefix)
