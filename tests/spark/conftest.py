"""One deployment and one Spark cluster of processes for all tests here; each test has topics of its
own, by whose names it sweeps."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from services.local.postgres import EmbeddedPostgres
from services.local.seaweedfs import S3Endpoint
from services.rsm.settings import RsmSettings
from spark_jobs.spark_session import SparkSettings, spark_session
from spark_jobs.sweeps.local_engine import LocalEngine
from tests.harness.processes import serving_rlmm
from tests.harness.served import serving
from tests.harness.tier import Tier
from tests.spark.jobs import Jobs, spark_engine
from tests.spark.records_reads import ServedTier
from tests.spark.tiers import new_tier


@pytest.fixture(scope="session")
def tier(
    tmp_path_factory: pytest.TempPathFactory,
    postgres: EmbeddedPostgres,
    migrated_database: str,
    s3: S3Endpoint,
) -> Iterator[Tier]:
    with new_tier(tmp_path_factory.mktemp("tier"), postgres, migrated_database, s3) as made:
        yield made


@pytest.fixture(scope="session")
def in_process(
    tmp_path_factory: pytest.TempPathFactory, postgres: EmbeddedPostgres, migrated_database: str
) -> Iterator[ServedTier]:
    """Both services over gRPC in this process, which start in no time."""
    name = f"in_process_{uuid4().hex}"
    database_url = postgres.create_database(name, template=migrated_database)
    settings = RsmSettings(backend="filesystem", directory=tmp_path_factory.mktemp("objects"))
    with serving(settings) as rsm, serving_rlmm(database_url) as rlmm:
        yield ServedTier(rsm.client, rlmm.client, rsm.address, rlmm.address)
    postgres.drop_database(name)


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
