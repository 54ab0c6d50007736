"""The rendered commands and environments do their work: executed here, against real servers."""

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from services.local.postgres import EmbeddedPostgres
from services.local.process import ChildProcess
from services.local.seaweedfs import S3Endpoint
from services.rlmm import schema
from tests.harness.eventually import eventually
from tests.harness.world import linked_log
from tests.helm.chart import Rendered, minimal, pod_spec, render
from tests.helm.local_cluster import LocalCluster, MissingReferenceError, Secrets
from tests.helm.test_chart_objects import Record

pytestmark = pytest.mark.helm

PODS = [("Deployment", "rsm"), ("Deployment", "rlmm"), ("DaemonSet", "rlm")]
PROBES = ["startupProbe", "livenessProbe", "readinessProbe"]
START_TIMEOUT_MS = 60_000


@dataclass(frozen=True)
class Deployed:
    """A release whose migration ran and whose pods run."""

    rendered: Rendered
    cluster: LocalCluster
    secrets: Secrets
    database_url: str
    s3: S3Endpoint
    bucket: str
    processes: dict[str, ChildProcess]

    def manifests(self) -> set[str]:
        """Keys of the segments that are in the tier."""
        found = self.s3.client().list_objects(self.bucket, recursive=True)
        keys = {str(item.object_name) for item in found}
        return {key for key in keys if key.endswith(".manifest")}


@pytest.fixture(scope="module")
def deployed(
    tmp_path_factory: pytest.TempPathFactory, postgres: EmbeddedPostgres, s3: S3Endpoint
) -> Iterator[Deployed]:
    directory = tmp_path_factory.mktemp("release")
    name = f"helm-{uuid.uuid4().hex[:12]}"
    s3.ensure_bucket(name)
    database_url = postgres.create_database(name)
    user, _, address = database_url.rpartition("@")
    login, _, password = user.rpartition(":")
    secrets = {
        "sediment-database": {"url": f"{login}@{address}", "password": password},
        "sediment-object-store": {"access-key": s3.access_key, "secret-key": s3.secret_key},
    }
    rendered = _rendered(s3, name, linked_log(directory))
    cluster = LocalCluster(rendered, secrets, directory)
    migration = cluster.run("Job", "sediment-migration")
    assert migration.returncode == 0, migration.stderr
    try:
        processes = {pod: cluster.start(kind, f"sediment-{pod}") for kind, pod in PODS}
        yield Deployed(rendered, cluster, secrets, database_url, s3, name, processes)
    finally:
        cluster.stop()
        postgres.drop_database(name)
        s3.remove_bucket(name)


def _rendered(s3: S3Endpoint, bucket: str, log_on_the_node: Path) -> Rendered:
    volume = {
        "name": "data",
        "mountPath": "/var/lib/kafka/data",
        "source": {"hostPath": {"path": str(log_on_the_node), "type": "Directory"}},
    }
    store = {"endpoint": s3.endpoint, "region": s3.region, "secure": s3.secure, "bucket": bucket}
    rlm = {
        "enabled": True,
        "logDirs": ["/var/lib/kafka/data"],
        "logVolumes": [volume],
        "settings": {"RLM_REMOTE_LOG_MANAGER_TASK_INTERVAL_MS": 200},
    }
    database = {"passwordKey": "password"}
    return render(minimal({"objectStore": store, "database": database, "rlm": rlm}))


def test_the_migration_job_makes_the_schema(deployed: Deployed, record_property: Record) -> None:
    assert schema.current_revision(deployed.database_url) == schema.known_revision()
    record_property("process", "migration")


def test_the_maintenance_purges_beside_the_services(
    deployed: Deployed, record_property: Record
) -> None:
    done = deployed.cluster.run("CronJob", "sediment-maintenance")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["already_running"] is False
    record_property("process", "maintenance")


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize(("kind", "pod"), PODS)
def test_the_rendered_probes_pass(
    deployed: Deployed, kind: str, pod: str, probe: str, record_property: Record
) -> None:
    name = f"sediment-{pod}"
    eventually(lambda: deployed.cluster.passes(kind, name, probe), START_TIMEOUT_MS)
    assert deployed.processes[pod].is_running(), deployed.processes[pod].log_tail()
    record_property("process", pod)


def test_rlm_ships_its_volume_through_the_rendered_services(
    deployed: Deployed,
) -> None:
    eventually(deployed.manifests, START_TIMEOUT_MS)


@pytest.mark.parametrize("sweep", ["retention-sweep", "partition-removal-sweep"])
def test_a_sweep_runs_dry_and_deletes_nothing(
    deployed: Deployed, sweep: str, record_property: Record
) -> None:
    before = eventually(deployed.manifests, START_TIMEOUT_MS)
    done = deployed.cluster.run("CronJob", f"sediment-{sweep}")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    assert before <= deployed.manifests()
    record_property("process", sweep)


@pytest.mark.parametrize(
    ("secrets", "sentence"),
    [
        ({}, "there is no Secret sediment-object-store"),
        (
            {"sediment-object-store": {"access-key": "a"}},
            "the Secret sediment-object-store has no key secret-key",
        ),
    ],
)
def test_a_missing_secret_is_named(
    deployed: Deployed, secrets: Secrets, sentence: str, tmp_path: Path
) -> None:
    cluster = LocalCluster(deployed.rendered, secrets, tmp_path)
    with pytest.raises(MissingReferenceError, match=sentence):
        cluster.execution("Deployment", "sediment-rsm")


def test_rlmm_before_the_migration_lives_but_is_not_ready(
    deployed: Deployed, empty_database_url: str, tmp_path: Path
) -> None:
    database = deployed.secrets["sediment-database"]
    server, _, _ = database["url"].rpartition("/")
    url = f"{server}/{empty_database_url.rpartition('/')[2]}"
    secrets = {**deployed.secrets, "sediment-database": {**database, "url": url}}
    cluster = LocalCluster(deployed.rendered, secrets, tmp_path)
    process = cluster.start("Deployment", "sediment-rlmm")
    try:
        live = ("Deployment", "sediment-rlmm", "livenessProbe")
        eventually(lambda: cluster.passes(*live), START_TIMEOUT_MS)
        eventually(lambda: "sediment db upgrade" in process.log_tail(), START_TIMEOUT_MS)
        assert not cluster.passes("Deployment", "sediment-rlmm", "readinessProbe")
    finally:
        cluster.stop()


@pytest.mark.parametrize(("kind", "pod"), PODS)
def test_a_pod_ends_within_its_grace_period(
    deployed: Deployed, kind: str, pod: str, tmp_path: Path
) -> None:
    cluster = LocalCluster(deployed.rendered, deployed.secrets, tmp_path)
    name = f"sediment-{pod}"
    process = cluster.start(kind, name)
    eventually(lambda: cluster.passes(kind, name, "livenessProbe"), START_TIMEOUT_MS)
    spec = pod_spec(deployed.rendered.one(kind, name))
    process.stop(grace_s=spec["terminationGracePeriodSeconds"])
    assert process.returncode == 0
