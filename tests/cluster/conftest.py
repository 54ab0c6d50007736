"""One cluster with one release for all tests here, in the order of their files."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.brokers import LOG_DIR, Broker
from tests.cluster.cluster import Cluster
from tests.cluster.guide import images
from tests.cluster.images import ensure_image, ensure_pause
from tests.cluster.release import Release, install, prepare
from tests.cluster.stores import Stores
from tests.helm.dockerfile import ROOT

KAFKA_LOG = ROOT / "tests" / "data" / "kafka-log"
SERVICES = "Dockerfile"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A node with its control plane, and the images of pods and services."""
    archives = [ensure_pause(), *_archives(SERVICES)]
    with Cluster() as started:
        for archive in archives:
            started.load(archive)
        yield started


@pytest.fixture(scope="session")
def stores(cluster: Cluster) -> Iterator[Stores]:
    with Stores(cluster) as started:
        yield started


@pytest.fixture(scope="session")
def release(cluster: Cluster, stores: Stores) -> Release:
    """The release of the guide, in a namespace whose pod security standard is `restricted`."""
    directory = cluster.directory / "guide"
    directory.mkdir()
    made = Release(cluster, directory)
    prepare(made, stores)
    install(made)
    return made


@pytest.fixture(scope="session")
def shipped(release: Release) -> Broker:
    """A broker's pod, all of whose rolled segments `sediment ship` has copied."""
    broker = Broker(release.cluster, KAFKA_LOG)
    broker.start()
    broker.execute(["sediment", "ship", LOG_DIR])
    return broker


def _archives(dockerfile: str) -> list[Path]:
    return [
        ensure_image(ROOT / "docker" / file, name)
        for name, file in images().items()
        if file == dockerfile
    ]
