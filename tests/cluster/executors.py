"""Watch the driver and the executors that a job on Spark has, and what they have open."""

import json
import shutil
from dataclasses import dataclass, field
from typing import Any

from tests.cluster.cluster import Cluster
from tests.cluster.jobs import create
from tests.cluster.network import Connection, observed, open_connections
from tests.cluster.release import TIER, Release
from tests.harness.eventually import eventually

DEADLINE_MS = 600_000
_API_PORT = 443
_DRIVER_PORT = 7078


@dataclass
class Seen:
    """The pods that a job had, and the connections that they had open, by the pods' UIDs.

    Attributes:
        driver, executor: components.
    """

    job: str
    driver: str
    executor: str
    pods: dict[str, Any] = field(default_factory=dict)
    connections: dict[str, set[Connection]] = field(default_factory=dict)

    def look(self, cluster: Cluster) -> None:
        """Add what is there now."""
        selector = f"--selector=app.kubernetes.io/component in ({self.driver},{self.executor})"
        for pod in cluster.get("--namespace", TIER, "pods", selector)["items"]:
            if pod["metadata"]["name"].startswith(f"{self.job}-"):
                uid = pod["metadata"]["uid"]
                self.pods[uid] = pod
                self.connections.setdefault(uid, set()).update(open_connections(pod))

    def of(self, component: str) -> list[Any]:
        """Return the pods of a component."""
        return [pod for pod in self.pods.values() if _component_of(pod) == component]

    def require_executors_of_the_release(self) -> None:
        (driver,), executors = self.of(self.driver), self.of(self.executor)
        assert executors
        for pod in executors:
            labels, of_driver = pod["metadata"]["labels"], driver["metadata"]["labels"]
            for label in ("instance", "name", "part-of", "version"):
                key = f"app.kubernetes.io/{label}"
                assert labels[key] == of_driver[key]

    def require_restricted_executors(self) -> None:
        """Look at what the API server has taken in a namespace that enforces `restricted`."""
        (driver,) = self.of(self.driver)
        for pod in self.of(self.executor):
            assert pod["spec"]["securityContext"] == driver["spec"]["securityContext"]
            assert pod["spec"]["serviceAccountName"] == driver["spec"]["serviceAccountName"]
            (container,), (of_driver,) = pod["spec"]["containers"], driver["spec"]["containers"]
            assert container["securityContext"] == of_driver["securityContext"]
            assert not any("serviceaccount" in m["mountPath"] for m in container["volumeMounts"])

    def require_allowed_connections(self, cluster: Cluster) -> None:
        network = observed(cluster, list(self.pods.values()))
        open_ones = [
            (pod, one) for uid, pod in self.pods.items() for one in self.connections.get(uid, ())
        ]
        found = {(_component_of(pod), one.accepted, one.port) for pod, one in open_ones}
        assert found >= {
            (self.driver, False, _API_PORT),
            (self.driver, True, _DRIVER_PORT),
            (self.executor, False, _DRIVER_PORT),
        }
        forbidden = [
            (_component_of(p), one) for p, one in open_ones if not network.is_allowed(p, one)
        ]
        assert forbidden == []
        stranger = Connection(True, "10.1.2.3", _DRIVER_PORT)
        assert not any(network.is_allowed(pod, stranger) for pod in self.of(self.driver))

    def require_no_executor_left(self, cluster: Cluster) -> None:
        selector = f"--selector=app.kubernetes.io/component={self.executor}"
        get = ["--namespace", TIER, "pods", selector]
        eventually(lambda: not cluster.get(*get)["items"], DEADLINE_MS, poll_ms=500)


def watched(release: Release, job: str, driver: str, executor: str) -> Seen:
    """Run a job of a driver's CronJob to its end, and return what was seen of it."""
    cluster, seen = release.cluster, Seen(job, driver, executor)
    create(release, job, f"sediment-{driver}")

    def has_ended() -> bool:
        seen.look(cluster)
        status = cluster.get("--namespace", TIER, f"job/{job}")["status"]
        return bool(status.get("conditions"))

    eventually(has_ended, DEADLINE_MS, poll_ms=100)
    return seen


def with_an_executor(cluster: Cluster, group: str) -> dict[str, Any]:
    """Create a volume that driver and executors write to, and return the values that use it.

    On a volume, because no node here reaches Maven Central for what writes to a bucket.
    """
    directory = cluster.directory / group
    directory.mkdir()
    shutil.chown(directory, 10001, 10001)
    size = {"storage": "1Gi"}
    shared = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": group},
        "spec": {
            **shared,
            "capacity": size,
            "hostPath": {"path": str(directory)},
            "claimRef": {"namespace": TIER, "name": group},
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": group, "namespace": TIER},
        "spec": {**shared, "volumeName": group, "resources": {"requests": size}},
    }
    for made in (volume, claim):
        cluster.kubectl("apply", "--filename=-", stdin=json.dumps(made))
    return {
        group: {
            "workDir": "/work",
            "extraVolumes": [{"name": "work", "persistentVolumeClaim": {"claimName": group}}],
            "extraVolumeMounts": [{"name": "work", "mountPath": "/work"}],
            "executors": {"count": 1, "memory": "1g"},
        }
    }


def _component_of(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["labels"]["app.kubernetes.io/component"])
