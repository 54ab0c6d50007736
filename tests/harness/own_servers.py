"""Provide PostgreSQL, an S3 store and ports that one test module may kill: import the fixtures."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.local.seaweedfs import SeaweedFS
from services.rlmm.database import schema
from tests.harness.local_servers import DatabaseServer
from tests.harness.world import World, running_world


@pytest.fixture(scope="module")
def own_postgres(server_directory: Path) -> Iterator[DatabaseServer]:
    with DatabaseServer(server_directory / f"pg-{uuid.uuid4().hex[:8]}") as server:
        yield server


@pytest.fixture(scope="module")
def own_s3(server_directory: Path) -> Iterator[SeaweedFS]:
    server = SeaweedFS(server_directory / f"s3-{uuid.uuid4().hex[:8]}")
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def own_world(
    tmp_path_factory: pytest.TempPathFactory, own_postgres: DatabaseServer, own_s3: SeaweedFS
) -> Iterator[World]:
    """Provide RSM and RLMM over these servers, with a log that a test has yet to set."""
    directory = tmp_path_factory.mktemp("own")
    database_url = own_postgres.create_database("own")
    schema.upgrade(database_url)
    own_s3.endpoint.ensure_bucket("own")
    with running_world(directory, database_url, own_s3.endpoint, "own", directory) as made:
        yield made


_MOST_WORKERS = 16


def own_ports() -> range:
    """Return candidates for `free_ports` that no other test process of this run uses.

    Servers that choose their own ports do not use them either.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return range(3_000 + worker % _MOST_WORKERS, 10_000, _MOST_WORKERS)
