"""The rendered commands and environments do their work: executed here, against real servers."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from services.local.process import LOOPBACK, ChildProcess
from services.rlmm.database import schema, schema_revision
from tests.harness.databases import Store, Stores
from tests.harness.eventually import eventually
from tests.harness.local_servers import free_ports
from tests.harness.world import linked_log
from tests.helm.chart import BASES, Rendered, changed, executor_pod, minimal, pod_spec, render
from tests.helm.local_cluster import (
    LocalCluster,
    MissingReferenceError,
    Secrets,
    released,
    values_of,
)
from tests.helm.test_chart_objects import Record

pytestmark = pytest.mark.helm

PODS = [("Deployment", "rsm"), ("Deployment", "rlmm"), ("DaemonSet", "rlm")]
PROBES = ["startupProbe", "livenessProbe", "readinessProbe"]
START_TIMEOUT_MS = 60_000
APPLICATION_ID = "spark-1"
OPEN = "--add-opens=java.base/{}=ALL-UNNAMED"
OPENED = ("java.lang", "java.lang.invoke", "java.nio", "java.util", "sun.nio.ch")


@dataclass(frozen=True)
class Deployed:
    """A release whose migration ran and whose pods run."""

    rendered: Rendered
    cluster: LocalCluster
    store: Store
    processes: dict[str, ChildProcess]

    def manifests(self) -> set[str]:
        """Return the keys of the manifests in the tier."""
        found = self.store.s3.client().list_objects(self.store.bucket, recursive=True)
        keys = {str(item.object_name) for item in found}
        return {key for key in keys if key.endswith(".manifest")}


@pytest.fixture(scope="module")
def deployed(stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    directory = tmp_path_factory.mktemp("release")
    log = {"path": str(linked_log(directory)), "type": "Directory"}
    volume = {"name": "data", "mountPath": "/var/lib/kafka/data", "source": {"hostPath": log}}
    rlm = {
        "enabled": True,
        "logDirs": ["/var/lib/kafka/data"],
        "logVolumes": [volume],
        "settings": {"RLM_REMOTE_LOG_MANAGER_TASK_INTERVAL_MS": 200},
    }
    checks = {"reconcile": {"enabled": True}, "scrub": {"enabled": True}}
    values = {"database": {"passwordKey": "password"}, "rlm": rlm, "checks": checks}
    with stores.new("helm", has_schema=False) as store:
        user, _, address = store.database_url.rpartition("@")
        login, _, password = user.rpartition(":")
        secrets = {"sediment-database": {"url": f"{login}@{address}", "password": password}}
        rendered = render(minimal(values, values_of(store)))
        with released(rendered, store, directory, secrets) as cluster:
            processes = {pod: cluster.start(kind, f"sediment-{pod}") for kind, pod in PODS}
            yield Deployed(rendered, cluster, store, processes)


def test_the_migration_job_makes_the_schema(deployed: Deployed, record_property: Record) -> None:
    assert schema.current_revision(deployed.store.database_url) == schema_revision.known_revision()
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


@pytest.mark.parametrize("check", ["reconcile", "scrub"])
def test_a_check_looks_at_what_was_shipped(
    deployed: Deployed, check: str, record_property: Record
) -> None:
    eventually(deployed.manifests, START_TIMEOUT_MS)
    done = deployed.cluster.run("CronJob", f"sediment-{check}")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["segments"] > 0
    record_property("process", check)


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(
    ("group", "base", "job", "executor"),
    [
        ("sweeps", "work-on-a-claim", "sediment-retention-sweep", "sweep-executor"),
        ("checks", "checks-on-a-claim", "sediment-scrub", "check-executor"),
    ],
)
def test_a_driver_of_the_chart_works_with_an_executor_of_the_chart(
    group: str,
    base: str,
    job: str,
    executor: str,
    deployed: Deployed,
    tmp_path: Path,
    record_property: Record,
) -> None:
    eventually(deployed.manifests, START_TIMEOUT_MS)
    port, blocks = free_ports(2)
    secret = "of-this-run"  # Spark makes one for a run on Kubernetes only
    conf = {
        "spark.driver.host": LOOPBACK,
        "spark.driver.port": port,
        "spark.driver.blockManager.port": blocks,
        "spark.blockManager.port": 0,
        "spark.authenticate.secret": secret,
        "spark.deploy.appIdPattern": APPLICATION_ID,
    }
    rendered = render(changed(BASES[base], {group: {"sparkConf": conf}}))
    # In place of what Spark makes of the pod of executors.
    pod = {
        "kind": "Job",
        "metadata": {"name": executor},
        "spec": {"template": executor_pod(rendered, executor)},
    }
    rendered.objects.append(pod)
    cluster = LocalCluster(rendered, {}, tmp_path)
    driver = cluster.execution("CronJob", job)
    services = deployed.cluster.execution("CronJob", job).argv
    argv = [
        # In Kubernetes' place: a cluster that has no executors of its own.
        "--master=local-cluster[0,1,1024]" if text.startswith("--master=") else text
        for text in [*driver.argv, *(a for a in services if a.startswith(("--rsm=", "--rlmm=")))]
    ]
    started = cluster.execution("Job", executor)
    variables = variables_of_spark(f"spark://CoarseGrainedScheduler@{LOOPBACK}:{port}", secret)
    log = tmp_path / "executors.log"
    with (tmp_path / "report.json").open("wb") as report, log.open("ab") as output:
        running = subprocess.Popen(
            argv, env=driver.environment, cwd=driver.directory, stdout=report, stderr=output
        )
        try:
            # Spark, too, starts an executor again that did not reach its driver.
            while running.poll() is None:
                subprocess.run(
                    [*started.argv, "executor"],
                    env={**started.environment, **variables},
                    cwd=started.directory,
                    stdout=output,
                    stderr=output,
                    check=False,
                )
        finally:
            running.kill()
            running.wait()
    assert running.returncode == 0, log.read_text()
    report = json.loads((tmp_path / "report.json").read_text())
    assert report.get("outcome") == "PLANNED" or report["verified"] == report["segments"] > 0
    assert "Finished task" in log.read_text()
    record_property("process", executor)


def variables_of_spark(driver_url: str, secret: str) -> dict[str, str]:
    """Return the variables that Spark adds to an executor's container."""
    options = ["-Dspark.authenticate=true", "-Dspark.network.crypto.enabled=true"]
    # What Arrow needs; a driver gives its executors many more of them.
    options += ["-Dio.netty.tryReflectionSetAccessible=true", *map(OPEN.format, OPENED)]
    return {
        "SPARK_DRIVER_URL": driver_url,
        "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "1",
        "SPARK_EXECUTOR_MEMORY": "512m",
        "SPARK_APPLICATION_ID": APPLICATION_ID,
        "SPARK_EXECUTOR_POD_IP": LOOPBACK,
        "SPARK_EXECUTOR_POD_NAME": "sweep-exec-1",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "_SPARK_AUTH_SECRET": secret,
        **{f"SPARK_JAVA_OPT_{number}": option for number, option in enumerate(options)},
    }


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
    database = deployed.cluster.secrets["sediment-database"]
    server, _, _ = database["url"].rpartition("/")
    url = f"{server}/{empty_database_url.rpartition('/')[2]}"
    secrets = {**deployed.cluster.secrets, "sediment-database": {**database, "url": url}}
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
    cluster = LocalCluster(deployed.rendered, deployed.cluster.secrets, tmp_path)
    name = f"sediment-{pod}"
    process = cluster.start(kind, name)
    eventually(lambda: cluster.passes(kind, name, "livenessProbe"), START_TIMEOUT_MS)
    spec = pod_spec(deployed.rendered.one(kind, name))
    process.stop(grace_s=spec["terminationGracePeriodSeconds"])
    assert process.returncode == 0
