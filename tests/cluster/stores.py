"""Run PostgreSQL and an S3 store on the node, as Services of the cluster."""

import json
import secrets
import subprocess
import sys
from typing import Self

from services.local.seaweedfs import S3Keys
from services.local.trial import POSTGRES_PORT, STORE_PORT
from tests.cluster.cluster import NODE_IP, Cluster
from tests.harness.eventually import eventually
from tests.helm.dockerfile import ROOT

NAMESPACE = "storage"

_START_DEADLINE_MS = 240_000
_STOP_TIMEOUT_S = 60.0


class Stores:
    """The servers, as the Services postgres and minio of the namespace `storage`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.password = secrets.token_urlsafe(18)
        self.keys = S3Keys(secrets.token_hex(10), secrets.token_urlsafe(30))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        directory = self._cluster.directory / "stores"
        directory.mkdir()
        directory.chmod(0o711)  # PostgreSQL has a user of its own
        files = {
            "password": self.password,
            "access-key": self.keys.access_key,
            "secret-key": self.keys.secret_key,
        }
        for name, text in files.items():
            (directory / name).write_text(text)
        arguments = [str(directory), str(directory / "data")]
        command = [sys.executable, "-m", "services.local.trial", *arguments]
        self._process = subprocess.Popen(
            self._cluster.inside(command, ROOT), stdin=subprocess.DEVNULL
        )
        eventually(self._listens, _START_DEADLINE_MS, poll_ms=200)
        self._cluster.kubectl("create", "namespace", NAMESPACE)
        objects = [*_service("postgres", POSTGRES_PORT), *_service("minio", STORE_PORT)]
        listed = {"apiVersion": "v1", "kind": "List", "items": objects}
        self._cluster.kubectl("apply", "--filename=-", stdin=json.dumps(listed))
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(_STOP_TIMEOUT_S)

    def _listens(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError("the stores ended while they started")
        listed = self._cluster.run(["ss", "--listening", "--tcp", "--numeric", "--no-header"])
        ports = [line.split()[3].rpartition(":")[2] for line in listed.splitlines()]
        return str(STORE_PORT) in ports


def _service(name: str, port: int) -> list[dict[str, object]]:
    """Return a Service of a server outside the cluster."""
    metadata = {"name": name, "namespace": NAMESPACE}
    labels = {"kubernetes.io/service-name": name}
    ports = [{"port": port}]
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": ports}},
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {**metadata, "labels": labels},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [NODE_IP]}],
            "ports": ports,
        },
    ]
