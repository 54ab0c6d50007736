"""One deployment and one Spark cluster of processes for all tests here; each test has topics of its
own, by whose names it sweeps."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from services.local.postgres import EmbeddedPostgres
from services.local.seaweedfs import S3Endpoint
from services.local.stack import ServiceProcess, rlmm_settings, rsm_settings
from services.rlmm.db import DatabaseLimits, create_database_engine
from spark_jobs.launch import spark_session
from tests.harness.tier import Tier, running_tier
from tests.spark.jobs import Jobs


@pytest.fixture(scope="session")
def tier(
    tmp_path_factory: pytest.TempPathFactory,
    postgres: EmbeddedPostgres,
    migrated_database: str,
    s3: S3Endpoint,
) -> Iterator[Tier]:
    directory = tmp_path_factory.mktemp("tier")
    name = f"spark-{uuid.uuid4().hex[:12]}"
    s3.ensure_bucket(name)
    database_url = postgres.create_database(name, template=migrated_database)
    rsm = ServiceProcess("rsm", rsm_settings(s3, name, ""), directory / "rsm")
    rlmm = ServiceProcess("rlmm", rlmm_settings(database_url), directory / "rlmm")
    no_limit = DatabaseLimits(idle_in_transaction_timeout_ms=0)
    engine = create_database_engine(database_url, no_limit, "tests")
    with running_tier(rsm, rlmm, s3, name, engine) as made:
        yield made
    engine.dispose()
    postgres.drop_database(name)
    s3.remove_bucket(name)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two executors, each a process with one core, on this machine."""
    directory = tmp_path_factory.mktemp("spark")
    log_path = directory / "spark.log"
    with spark_session("tests", directory, log_path, "local-cluster[2,1,1024]") as session:
        yield session


@pytest.fixture
def jobs(spark: SparkSession, tier: Tier, tmp_path: Path) -> Jobs:
    return Jobs(spark, tier, tmp_path)
