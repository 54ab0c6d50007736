"""One deployment and one Spark cluster of processes for all tests here; each test has topics of its
own, by whose names it sweeps."""

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from services.rlm.copy.ship import ship
from services.rsm.settings import RsmSettings
from spark_jobs.spark_session import SparkSettings, spark_session
from spark_jobs.sweeps.local_engine import LocalEngine
from tests.harness.databases import Stores
from tests.harness.local_servers import DatabaseServer
from tests.harness.processes import serving_rlmm
from tests.harness.served import serving
from tests.harness.tier import Tier
from tests.harness.world import BUNDLED_LOG
from tests.spark.jobs import Jobs, spark_engine
from tests.spark.records_reads import ServedTier
from tests.spark.tiers import new_tier


@pytest.fixture(scope="session")
def tier(stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tier]:
    with new_tier(tmp_path_factory.mktemp("tier"), stores) as made:
        yield made


@pytest.fixture(scope="session")
def in_process(
    tmp_path_factory: pytest.TempPathFactory, postgres: DatabaseServer, migrated_database: str
) -> Iterator[ServedTier]:
    """Both services over gRPC in this process, which start in no time."""
    name = f"in_process_{uuid4().hex}"
    database_url = postgres.create_database(name, template=migrated_database)
    settings = RsmSettings(backend="filesystem", directory=tmp_path_factory.mktemp("objects"))
    with serving(settings) as rsm, serving_rlmm(database_url) as rlmm:
        yield ServedTier(rsm.client, rlmm.client, rsm.address, rlmm.address)
    postgres.drop_database(name)


@pytest.fixture(scope="module")
def shipped(tier: Tier, tmp_path_factory: pytest.TempPathFactory) -> ServedTier:
    """The bundled log of a real broker in the tier."""
    log_dir = shutil.copytree(BUNDLED_LOG, tmp_path_factory.mktemp("log") / "log")
    ship([log_dir], tier.rsm, tier.rlmm)
    rsm, rlmm = tier.rsm_process.address, tier.rlmm_process.address
    return ServedTier(tier.rsm, tier.rlmm, rsm, rlmm)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two executors, each a process with one core, on this machine."""
    directory = tmp_path_factory.mktemp("spark")
    log_path = directory / "spark.log"
    settings = SparkSettings("local-cluster[2,1,1024]")
    with spark_session("tests", directory, log_path, settings) as session:
        yield session


@pytest.fixture
def jobs(request: pytest.FixtureRequest, tier: Tier, tmp_path: Path) -> Jobs:
    """Run sweeps on the tests' cluster, or by the engine that the test names."""
    if getattr(request, "param", "spark") == "local":
        return Jobs(LocalEngine, tier, tmp_path)
    return Jobs(partial(spark_engine, request.getfixturevalue("spark")), tier, tmp_path)


@pytest.fixture
def events(tmp_path: Path) -> Path:
    """The directory of Spark's event log, which the configuration in `tmp_path` turns on."""
    directory = tmp_path / "events"
    directory.mkdir()
    settings = f"spark.eventLog.enabled true\nspark.eventLog.dir file:{directory}\n"
    (tmp_path / "spark-defaults.conf").write_text(settings)
    return directory
