"""One broker that tiers through the plugin for a module's happy paths; a test has its own topics.

It ends with the module: an idle broker that looks for work five times a second takes half a core.

Every test under this folder bears the marker `plugin`.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.databases import Store
from tests.harness.kafka_broker import plugin_jar
from tests.harness.world import World, running_world
from tests.plugin.deployment import Deployment, tiering_broker


@pytest.fixture(scope="session")
def jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, for a build meanwhile takes away the jar that brokers run from."""
    built = plugin_jar()
    return Path(shutil.copy2(built, tmp_path_factory.mktemp("jar") / built.name))


@pytest.fixture(scope="module")
def services(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """An RSM and an RLMM that no test kills."""
    directory = tmp_path_factory.mktemp("services")
    with running_world(directory, *store, directory) as world:
        yield world


@pytest.fixture(scope="module")
def deployment(
    jar: Path, services: World, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    """Tests may restart or kill this broker, and leave it running."""
    with tiering_broker(jar, services, tmp_path_factory.mktemp("broker")) as made:
        yield made
