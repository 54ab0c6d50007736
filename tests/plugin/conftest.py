"""One broker that tiers through the plugin for a module's happy paths; a test has its own topics.

It ends with the module: an idle broker that looks for work five times a second takes half a core.

Every test under this folder bears the marker `plugin`.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from demos.kafka_broker import plugin_settings
from services.local.postgres import EmbeddedPostgres
from services.local.seaweedfs import S3Endpoint
from tests.harness.kafka_broker import kafka_broker, plugin_jar
from tests.harness.world import World, running_world
from tests.plugin.deployment import IMPATIENT, Deployment


@pytest.fixture(scope="session")
def jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, for a build meanwhile takes away the jar that brokers run from."""
    built = plugin_jar()
    return Path(shutil.copy2(built, tmp_path_factory.mktemp("jar") / built.name))


@pytest.fixture(scope="module")
def services(
    tmp_path_factory: pytest.TempPathFactory,
    postgres: EmbeddedPostgres,
    migrated_database: str,
    s3: S3Endpoint,
) -> Iterator[World]:
    """An RSM and an RLMM that no test kills."""
    store = f"plugin-{uuid4()}"
    s3.ensure_bucket(store)
    url = postgres.create_database(store, template=migrated_database)
    directory = tmp_path_factory.mktemp("services")
    with running_world(directory, url, s3, store, directory) as world:
        yield world
    postgres.drop_database(store)
    s3.remove_bucket(store)


@pytest.fixture(scope="module")
def deployment(
    jar: Path, services: World, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    """Tests may restart or kill this broker, and leave it running."""
    settings = plugin_settings(jar, services.rsm.address, services.rlmm.address)
    directory = tmp_path_factory.mktemp("broker")
    with kafka_broker(directory, {**IMPATIENT, **settings}) as broker:
        yield Deployment(broker, services)
