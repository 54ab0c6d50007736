"""The tests here are of MinIO, whatever TEST_S3 says."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.local.seaweedfs import S3Endpoint
from tests.harness.minio import MinioServer


@pytest.fixture(scope="session")
def minio(server_directory: Path) -> Iterator[MinioServer]:
    """One MinIO for all tests here. Who stops or kills a server starts one of their own."""
    with MinioServer(server_directory / "minio", encrypts=True) as server:
        yield server


@pytest.fixture(scope="session")
def s3(minio: MinioServer) -> S3Endpoint:
    return minio.endpoint
