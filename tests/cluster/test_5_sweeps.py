"""The sweeps of the chart delete what is due, also with executors of Spark in pods of their own."""

import json
import shutil
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml

from tests.cluster.brokers import Broker
from tests.cluster.cluster import Cluster
from tests.cluster.guide import blocks
from tests.cluster.jobs import create, report_of
from tests.cluster.network import Connection, observed, open_connections
from tests.cluster.release import BROKERS, RLMM, TIER, Release
from tests.harness.eventually import eventually

pytestmark = pytest.mark.cluster

_SWEEP_DEADLINE_MS = 600_000
_EXPIRED = ("clicks", "payments")
"""Topics that get a retention of 1 ms, one for each run that deletes."""

_JOB = "spark-now"
_DRIVER, _EXECUTOR = "retention-sweep", "sweep-executor"
_API_PORT = 443
_DRIVER_PORT = 7078
_EXPECTED = {
    (_DRIVER, False, _API_PORT),
    (_DRIVER, True, _DRIVER_PORT),
    (_EXECUTOR, False, _DRIVER_PORT),
}
"""What is open during a sweep: component, whether it accepted, port."""


@dataclass
class Seen:
    """The pods that a sweep had, and the connections that they had open, by the pods' UIDs."""

    pods: dict[str, Any] = field(default_factory=dict)
    connections: dict[str, set[Connection]] = field(default_factory=dict)

    def look(self, cluster: Cluster) -> None:
        """Add what is there now."""
        selector = f"--selector=app.kubernetes.io/component in ({_DRIVER},{_EXECUTOR})"
        for pod in cluster.get("--namespace", TIER, "pods", selector)["items"]:
            if pod["metadata"]["name"].startswith(f"{_JOB}-"):
                uid = pod["metadata"]["uid"]
                self.pods[uid] = pod
                self.connections.setdefault(uid, set()).update(open_connections(pod))

    def of(self, component: str) -> list[Any]:
        """Return the pods of a component."""
        return [pod for pod in self.pods.values() if component_of(pod) == component]


@pytest.fixture(scope="module")
def alone(release: Release, shipped: Broker, spark_image: None) -> Release:
    """The release without its brokers: only the sweeps change the tier."""
    scale = ["scale", "statefulset/kafka", "--replicas=0"]
    release.cluster.kubectl("--namespace", BROKERS, *scale)
    wait = ["wait", "pod", "--for=delete", "--selector=app=kafka", "--timeout=300s"]
    release.cluster.kubectl("--namespace", BROKERS, *wait)
    return release


def test_a_retention_sweep_only_reports_at_first(alone: Release) -> None:
    expire(alone, _EXPIRED[0])
    before = segments(alone, _EXPIRED[0])
    look, _ = blocks("Sweeps", "sh")
    alone.shell(look)
    report = report_of(alone, "retention-look")
    assert report["apply"] is False
    assert report["totals"]["planned_segments"] == before > 0
    assert segments(alone, _EXPIRED[0]) == before


def test_a_retention_sweep_deletes_when_it_may(alone: Release) -> None:
    alone.upgrade(yaml.safe_load(blocks("Sweeps", "yaml")[0]))
    create(alone, "retention-now", "sediment-retention-sweep")
    report = report_of(alone, "retention-now")
    assert report["totals"]["deleted_segments"] == report["totals"]["planned_segments"] > 0
    assert segments(alone, _EXPIRED[0]) == 0


@pytest.fixture(scope="module")
def swept(alone: Release) -> Seen:
    """What was seen of a sweep with an executor's pod, which deleted all that had expired.

    Its work directory is on a volume, because no node here reaches Maven Central for S3's.
    """
    cluster, seen = alone.cluster, Seen()
    expire(alone, _EXPIRED[1])
    alone.upgrade(shared_directory(cluster))
    create(alone, _JOB, "sediment-retention-sweep")

    def has_ended() -> bool:
        seen.look(cluster)
        status = cluster.get("--namespace", TIER, f"job/{_JOB}")["status"]
        return bool(status.get("conditions"))

    eventually(has_ended, _SWEEP_DEADLINE_MS, poll_ms=100)
    report = report_of(alone, _JOB)
    assert report["engine"] == "spark"
    assert report["totals"]["deleted_segments"] == report["totals"]["planned_segments"] > 0
    assert segments(alone, _EXPIRED[1]) == 0
    return seen


def test_executors_are_pods_of_the_release(swept: Seen) -> None:
    (driver,), executors = swept.of(_DRIVER), swept.of(_EXECUTOR)
    assert executors
    for pod in executors:
        labels, of_driver = pod["metadata"]["labels"], driver["metadata"]["labels"]
        for label in ("instance", "name", "part-of", "version"):
            key = f"app.kubernetes.io/{label}"
            assert labels[key] == of_driver[key]


def test_executors_are_as_restricted_as_their_driver(swept: Seen) -> None:
    """Look at what the API server has taken in a namespace that enforces `restricted`."""
    (driver,) = swept.of(_DRIVER)
    for pod in swept.of(_EXECUTOR):
        assert pod["spec"]["securityContext"] == driver["spec"]["securityContext"]
        (container,), (of_driver,) = pod["spec"]["containers"], driver["spec"]["containers"]
        assert container["securityContext"] == of_driver["securityContext"]
        assert not any("serviceaccount" in m["mountPath"] for m in container["volumeMounts"])


def test_driver_and_executors_may_talk_to_each_other(swept: Seen, alone: Release) -> None:
    network = observed(alone.cluster, list(swept.pods.values()))
    open_ones = [
        (pod, one) for uid, pod in swept.pods.items() for one in swept.connections.get(uid, ())
    ]
    found = {(component_of(pod), one.accepted, one.port) for pod, one in open_ones}
    assert found >= _EXPECTED
    forbidden = [(component_of(p), one) for p, one in open_ones if not network.is_allowed(p, one)]
    assert forbidden == []
    stranger = Connection(True, "10.1.2.3", _DRIVER_PORT)
    assert not any(network.is_allowed(pod, stranger) for pod in swept.of(_DRIVER))


def test_no_executor_is_left(swept: Seen, alone: Release) -> None:
    selector = f"--selector=app.kubernetes.io/component={_EXECUTOR}"
    get = ["--namespace", TIER, "pods", selector]
    eventually(lambda: not alone.cluster.get(*get)["items"], _SWEEP_DEADLINE_MS, poll_ms=500)


def component_of(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["labels"]["app.kubernetes.io/component"])


def expire(release: Release, topic: str) -> None:
    settings = ["retention.ms=1", "sediment.retention.owner=sweep", "--now"]
    release.sediment("topics", "set", topic, *settings, f"--rlmm={RLMM}")


def segments(release: Release, topic: str) -> int:
    """Count the finished segments of a topic's two partitions."""
    found = [
        json.loads(line)
        for partition in (0, 1)
        for line in release.sediment(
            "segments", f"{topic}-{partition}", f"--rlmm={RLMM}", "--output=json"
        ).splitlines()
    ]
    return sum(one["state"] == "COPY_SEGMENT_FINISHED" for one in found)


def shared_directory(cluster: Cluster) -> dict[str, Any]:
    """Create a volume that driver and executors write to, and return the values that use it."""
    directory = cluster.directory / "sweeps"
    directory.mkdir()
    shutil.chown(directory, 10001, 10001)
    size = {"storage": "1Gi"}
    shared = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "sweeps"},
        "spec": {
            **shared,
            "capacity": size,
            "hostPath": {"path": str(directory)},
            "claimRef": {"namespace": TIER, "name": "sweeps"},
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "sweeps", "namespace": TIER},
        "spec": {**shared, "volumeName": "sweeps", "resources": {"requests": size}},
    }
    for made in (volume, claim):
        cluster.kubectl("apply", "--filename=-", stdin=json.dumps(made))
    return {
        "sweeps": {
            "workDir": "/work",
            "extraVolumes": [{"name": "work", "persistentVolumeClaim": {"claimName": "sweeps"}}],
            "extraVolumeMounts": [{"name": "work", "mountPath": "/work"}],
            "executors": {"count": 1, "memory": "1g"},
        }
    }
