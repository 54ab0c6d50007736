"""Provide deployments, RLMM on a database of its own, and RSM over this run's S3 server."""

import shutil
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Engine

from services.api.ids import TopicIdPartition
from services.local.seaweedfs import S3Endpoint
from services.rlmm.database.engine import create_database_engine
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.backends.protocol import StorageBackend
from services.rsm.factory import build_backend, build_manager
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import StoredKeys
from tests.contract.rsm_over_s3 import everything_in, settings_for
from tests.harness.clocks import Clock
from tests.harness.databases import OwnRlmm, Store, Stores
from tests.harness.eventually import PATIENT
from tests.harness.http_messages import s3_operation
from tests.harness.http_proxy import HttpProxy
from tests.harness.local_servers import DatabaseServer
from tests.harness.ship_stack import BUNDLED, Stack, running_stack
from tests.harness.tier import FileTier, a_topic
from tests.harness.world import World, linked_log, name_topics_anew, running_world
from tests.unit.rlm.kafka_bytes import write_log_dir


@pytest.fixture(scope="module")
def store(stores: Stores) -> Iterator[Store]:
    """Provide a database and a bucket of the module's own."""
    with stores.new() as made:
        yield made


@pytest.fixture(scope="module")
def deployment(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("world")
    with running_world(directory, *store, linked_log(directory)) as made:
        yield made


@pytest.fixture
def world(deployment: World, tmp_path: Path) -> World:
    """Provide RSM and RLMM as processes, and a small log that is new to both."""
    deployment.log_dir = linked_log(tmp_path)
    name_topics_anew(deployment.log_dir)
    return deployment


@pytest.fixture(scope="module")
def rlmm_database_url(postgres: DatabaseServer, migrated_database: str) -> Iterator[str]:
    name = f"rlmm-{uuid.uuid4().hex[:12]}"
    yield postgres.create_database(name, template=migrated_database)
    postgres.drop_database(name)


@pytest.fixture
def stack(database_url: str, tmp_path: Path, log_dir: Path) -> Iterator[Stack]:
    with running_stack(database_url, tmp_path / "objects", log_dir) as made:
        yield made


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return write_log_dir(tmp_path / "logs")


@pytest.fixture
def bundled(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BUNDLED, tmp_path / "bundled"))


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = create_database_engine(database_url, PATIENT)
    yield engine
    engine.dispose()


@pytest.fixture
def rlmm(engine: Engine, database_url: str) -> OwnRlmm:
    return OwnRlmm(engine, database_url)


@pytest.fixture
def tier(rlmm: OwnRlmm, tmp_path: Path) -> Iterator[FileTier]:
    settings = RsmSettings(backend="filesystem", directory=tmp_path)
    with closing(build_manager(settings)) as rsm:
        yield FileTier(rsm, rlmm, FilesystemStorage(tmp_path))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tp() -> TopicIdPartition:
    return a_topic("orders")[0]


@pytest.fixture
def moved(tmp_path: Path) -> Iterator[ObjectRemoteStorageManager]:
    """Provide an RSM whose location 2 is the current one, and 1 the previous one."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    registry = tmp_path / "locations.toml"
    registry.write_text(
        f'[[location]]\nid = 1\nbackend = "filesystem"\ndirectory = "{tmp_path / "old"}"\n'
        'prefix = ""\n'
    )
    settings = RsmSettings(
        backend="filesystem",
        directory=tmp_path / "new",
        location_id=2,
        locations_file=registry,
    )
    with closing(build_manager(settings)) as rsm:
        yield rsm


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
