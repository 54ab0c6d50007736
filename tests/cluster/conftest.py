"""One cluster with one release for all tests here, in the order of their files."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.brokers import LOG_DIR, Broker
from tests.cluster.cluster import Cluster
from tests.cluster.guide import blocks, images
from tests.cluster.images import ensure_image, ensure_pause
from tests.cluster.records import Record, records_of
from tests.cluster.release import STOCK_BROKERS, Release, install, prepare
from tests.cluster.stores import Stores
from tests.helm.dockerfile import ROOT

KAFKA_LOG = ROOT / "tests" / "data" / "kafka-log"
SERVICES = "Dockerfile"
SPARK = "Dockerfile.spark"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A node with its control plane, and no image but that of every pod's own container."""
    archive = ensure_pause()
    with Cluster() as started:
        started.load(archive)
        yield started


@pytest.fixture(scope="session")
def services_image(cluster: Cluster) -> None:
    """The image of the services."""
    for archive in _archives(SERVICES):
        cluster.load(archive)


@pytest.fixture(scope="session")
def spark_image(cluster: Cluster) -> None:
    """The image of the sweeps and of executors."""
    for archive in _archives(SPARK):
        cluster.load(archive)


@pytest.fixture(scope="session")
def stores(cluster: Cluster) -> Iterator[Stores]:
    with Stores(cluster) as started:
        yield started


@pytest.fixture(scope="session")
def release(cluster: Cluster, stores: Stores, services_image: None) -> Release:
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


@pytest.fixture(scope="session")
def lost(shipped: Broker) -> dict[str, list[Record]]:
    """The records of rolled segments, by partition, whose files are gone from the broker's disk."""
    records = {}
    for folder in shipped.log_dir.glob("*-*/"):
        *rolled, active = sorted(folder.glob("*.log"))
        end = int(active.stem)
        records[folder.name] = [record for record in records_of(folder) if record.offset < end]
        for log in rolled:
            for file in folder.glob(f"{log.stem}.*"):
                file.unlink()
    return records


@pytest.fixture(scope="session")
def rlm_beside(release: Release, shipped: Broker) -> Broker:
    """The broker's pod with RLM in it, by the patch that the guide applies."""
    (sidecar,) = [text for text in blocks(STOCK_BROKERS, "yaml") if "sidecar:" in text]
    release.upgrade(yaml.safe_load(sidecar))
    release.shell(blocks(STOCK_BROKERS, "sh")[0])
    shipped.wait()
    return shipped


def _archives(dockerfile: str) -> list[Path]:
    return [
        ensure_image(ROOT / "docker" / file, name)
        for name, file in images().items()
        if file == dockerfile
    ]
