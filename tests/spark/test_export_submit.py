"""`spark-submit main.py export` of the wheel alone, over TLS, into a table in an S3 store."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from services.api.roles import Role
from services.local.seaweedfs import S3Endpoint
from tests.harness.databases import Stores
from tests.harness.jars import ensure_s3a_jars
from tests.harness.secured import Deployment, spiffe
from tests.harness.tier import Tier, a_topic
from tests.spark.bare_environment import BareEnvironment, make_bare_environment
from tests.spark.made_logs import copied, plain
from tests.spark.s3a_properties import s3a_properties
from tests.spark.standalone import StandaloneCluster, standalone_cluster
from tests.spark.tiers import new_tier
from tools.shape import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1_500)]
BUCKET = "exported"
TABLE = f"s3a://{BUCKET}/tables/records"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> BareEnvironment:
    """What `make install-export` installs, without Sediment."""
    [packages] = ROOT.glob(".venv-export/lib/python*/site-packages")
    return make_bare_environment(tmp_path_factory.mktemp("bare-export"), packages)


@pytest.fixture(scope="module")
def cluster(
    environment: BareEnvironment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StandaloneCluster]:
    directory, home = tmp_path_factory.mktemp("export-cluster"), environment.spark_home
    with standalone_cluster(home, environment.variables(), directory) as running:
        yield running


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    made = Deployment(tmp_path_factory.mktemp("tls"))
    made.grant(spiffe("tests"), *Role)
    made.grant(spiffe("exports"), Role.READER, Role.EXPORTER)
    return made


@pytest.fixture(scope="module")
def secured(
    deployment: Deployment, stores: Stores, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tier]:
    settings = deployment.environment("RSM") | deployment.environment("RLMM")
    directory, own = tmp_path_factory.mktemp("secured"), deployment.client("tests")
    with new_tier(directory, stores, settings, own) as tier:
        yield tier


def test_a_table_in_a_store_has_each_record_once(
    environment: BareEnvironment,
    cluster: StandaloneCluster,
    deployment: Deployment,
    secured: Tier,
    s3: S3Endpoint,
    tmp_path: Path,
) -> None:
    s3.ensure_bucket(BUCKET)
    [tp] = a_topic()
    copied(secured, tp, 0, [plain(0, [b"a", b"b", b"c"])])
    properties = tmp_path / "spark.conf"
    small = {"spark.databricks.delta.snapshotPartitions": "2", "spark.sql.shuffle.partitions": "2"}
    given = {**s3a_properties(s3, BUCKET, ensure_s3a_jars()), **small}
    properties.write_text("\n".join(f"{key} {value}" for key, value in given.items()))
    client = deployment.client("exports")
    tls = ("--tls-ca", client.ca, "--tls-certificate", client.certificate, "--tls-key", client.key)

    def export() -> dict[str, Any]:
        report = tmp_path / "report.json"
        done = environment.spark_submit(
            (
                *("--master", cluster.master, "--executor-memory", "512m"),
                *("--properties-file", str(properties)),
            ),
            environment.main,
            "export",
            *("--rsm", secured.rsm_process.address, "--rlmm", secured.rlmm_process.address),
            *("--topic", tp.topic, "--table", TABLE, "--max-offsets", "2"),
            *(*map(str, tls), "--report", str(report)),
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        [partition] = json.loads(report.read_text())["partitions"]
        found: dict[str, Any] = partition
        return found

    assert export()["commits"] == 2
    copied(secured, tp, 3, [plain(3, [b"d"])])
    assert export()["commits"] == 1
    assert export()["commits"] == 0
    rows = rows_of(s3, tmp_path / "table")
    assert [(row["offset"], row["value"]) for row in rows] == list(
        enumerate([b"a", b"b", b"c", b"d"])
    )
    [position] = secured.rlmm.partition_state(tp).value.holds
    assert (position.name, position.first_offset) == (TABLE, 4)


def rows_of(store: S3Endpoint, directory: Path) -> list[dict[str, Any]]:
    """Download the table, in which nothing was ever removed, and return its rows by offset."""
    client, rows = store.client(), list[dict[str, Any]]()
    for each in client.list_objects(BUCKET, "tables/", recursive=True):
        name = str(each.object_name)
        client.fget_object(BUCKET, name, str(directory / name))
    actions = [
        json.loads(line)
        for log in directory.glob("**/_delta_log/*.json")
        for line in log.read_text().splitlines()
    ]
    assert not [each for each in actions if "remove" in each]
    for added in (each["add"]["path"] for each in actions if "add" in each):
        rows += pq.read_table(directory / "tables" / "records" / added).to_pylist()
    return sorted(rows, key=lambda row: int(row["offset"]))
