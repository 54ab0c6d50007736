"""Run a pod in the place of a broker's: the project's image beside a log directory."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.cluster.cluster import Cluster
from tests.cluster.guide import images
from tests.cluster.release import BROKERS, RLMM, RSM

POD = "kafka-0"
LOG_DIR = "/var/lib/kafka/data"

_EXECUTE = ["kubectl", f"--namespace={BROKERS}", "exec", "--stdin", POD, "--container=broker", "--"]
_UID = 10001
_SERVICES = {
    "SEDIMENT_RSM": RSM,
    "SEDIMENT_RLMM": RLMM,
    "SEDIMENT_PLAINTEXT": "true",
}


class Broker:
    """The StatefulSet `kafka` of one pod, with its log directory on the node's disk."""

    def __init__(self, cluster: Cluster, log_dir: Path) -> None:
        self._cluster = cluster
        # What the pod's container has at /var/lib/kafka.
        self._disk = cluster.directory / "broker"
        shutil.copytree(log_dir, self._disk / "data")
        for path in [self._disk, *self._disk.rglob("*")]:
            shutil.chown(path, _UID, _UID)

    def start(self) -> None:
        """Create the StatefulSet and wait until its pod is ready."""
        listed = {"apiVersion": "v1", "kind": "List", "items": _objects(self._disk)}
        self._cluster.kubectl("create", "namespace", BROKERS)
        self._cluster.kubectl("apply", "--filename=-", stdin=json.dumps(listed))
        self.wait()

    def wait(self) -> None:
        """Wait until the pod that the StatefulSet now describes is ready."""
        status = ["rollout", "status", "statefulset/kafka", "--timeout=300s"]
        self._cluster.kubectl("--namespace", BROKERS, *status)

    def execute(self, command: Sequence[str]) -> str:
        """Run a command in the broker's container, and return what it prints."""
        return self._cluster.run([*_EXECUTE, *command])

    def execution(self, command: Sequence[str]) -> list[str]:
        """Return the command that runs `command` in the broker's container from this machine."""
        return self._cluster.inside([*_EXECUTE, *command])

    @property
    def log_dir(self) -> Path:
        """The log directory, as this machine has it."""
        return self._disk / "data"


def _objects(disk: Path) -> list[dict[str, Any]]:
    size = {"storage": "1Gi"}
    (image,) = [name for name, file in images().items() if file == "Dockerfile"]
    container = {
        "name": "broker",
        "image": image,
        "command": ["sleep", "infinity"],
        "env": [{"name": name, "value": value} for name, value in _SERVICES.items()],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "data", "mountPath": "/var/lib/kafka"},
        ],
    }
    pod = {
        "terminationGracePeriodSeconds": 10,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _UID,
            "runAsGroup": _UID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    }
    labels = {"app": "kafka"}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "broker"},
            "spec": {
                "capacity": size,
                "accessModes": ["ReadWriteOnce"],
                "hostPath": {"path": str(disk)},
                "storageClassName": "",
                "claimRef": {"namespace": BROKERS, "name": "data"},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data", "namespace": BROKERS},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "",
                "volumeName": "broker",
                "resources": {"requests": size},
            },
        },
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": "kafka", "namespace": BROKERS},
            "spec": {
                "serviceName": "kafka",
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
    ]
