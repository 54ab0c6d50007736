"""Run the suite of stores over S3 and over files."""

from pathlib import Path

import pytest

from services.local.process import LOOPBACK
from services.local.seaweedfs import S3Endpoint
from services.rsm.backends.contract import StorageBackendContract
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.backends.protocol import StorageBackend
from services.rsm.factory import build_backend
from services.rsm.settings import RsmSettings
from tests.contract.rsm_over_s3 import BackendOfSettings, settings_for
from tests.harness.local_servers import free_ports


class TestFiles(StorageBackendContract):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> StorageBackend:
        return FilesystemStorage(tmp_path)

    @pytest.fixture
    def another(self, tmp_path: Path) -> StorageBackend:
        return FilesystemStorage(tmp_path)

    @pytest.fixture
    def without_bucket(self, tmp_path: Path) -> StorageBackend:
        return FilesystemStorage(tmp_path / "nowhere")


class TestS3(BackendOfSettings):
    @pytest.fixture
    def settings(self, s3: S3Endpoint) -> RsmSettings:
        return settings_for(s3)

    @pytest.fixture
    def without_bucket(self, settings: RsmSettings) -> StorageBackend:
        return build_backend(settings.model_copy(update={"bucket": "no-such-bucket"}))

    @pytest.fixture
    def unreachable(self, settings: RsmSettings) -> StorageBackend:
        (port,) = free_ports(1)
        return build_backend(settings.model_copy(update={"endpoint": f"{LOOPBACK}:{port}"}))
