"""Provide deployments: of processes, one per test module; in this process, one per test."""

import shutil
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from services.local.postgres import EmbeddedPostgres
from services.local.seaweedfs import S3Endpoint
from services.rsm.factory import build_manager
from services.rsm.settings import RsmSettings
from tests.harness.partition_story import PartitionStory
from tests.harness.rlmm_process import RlmmProcess, running_rlmm
from tests.harness.ship_stack import BUNDLED, Stack, running_stack
from tests.harness.world import World, linked_log, name_topics_anew, running_world
from tests.unit.rlm.kafka_bytes import write_log_dir


@pytest.fixture(scope="module")
def deployment(
    tmp_path_factory: pytest.TempPathFactory,
    postgres: EmbeddedPostgres,
    migrated_database: str,
    s3: S3Endpoint,
) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("world")
    name = f"world-{uuid.uuid4().hex[:12]}"
    s3.ensure_bucket(name)
    database_url = postgres.create_database(name, template=migrated_database)
    with running_world(directory, database_url, s3, name, linked_log(directory)) as made:
        yield made
    postgres.drop_database(name)
    s3.remove_bucket(name)


@pytest.fixture
def world(deployment: World, tmp_path: Path) -> World:
    """Provide RSM and RLMM as processes, and a small log that is new to both."""
    deployment.log_dir = linked_log(tmp_path)
    name_topics_anew(deployment.log_dir)
    return deployment


@pytest.fixture(scope="module")
def rlmm_database_url(postgres: EmbeddedPostgres, migrated_database: str) -> Iterator[str]:
    name = f"rlmm-{uuid.uuid4().hex[:12]}"
    yield postgres.create_database(name, template=migrated_database)
    postgres.drop_database(name)


@pytest.fixture(scope="module")
def rlmm_process(
    rlmm_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RlmmProcess]:
    with running_rlmm(rlmm_database_url, tmp_path_factory.mktemp("rlmm")) as process:
        yield process


@pytest.fixture
def story(rlmm_process: RlmmProcess, tmp_path: Path) -> Iterator[PartitionStory]:
    """Provide an unknown partition: RLMM as a process, RSM over files."""
    settings = RsmSettings(backend="filesystem", directory=tmp_path)
    with closing(build_manager(settings)) as rsm:
        yield PartitionStory(rlmm_process.client, rsm, tmp_path)


@pytest.fixture
def stack(database_url: str, tmp_path: Path) -> Iterator[Stack]:
    with running_stack(database_url, tmp_path / "objects") as made:
        yield made


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return write_log_dir(tmp_path / "logs")


@pytest.fixture
def bundled(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BUNDLED, tmp_path / "bundled"))
