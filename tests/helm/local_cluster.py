"""A rendered chart's containers as processes of this machine.

Commands, arguments, environments, ports and probes are those that were rendered. A cluster gives
to a container what its spec only names; here that is, and nothing else is changed:

* a command is found in the virtual environment, as it is found in the image's;
* a ConfigMap is a rendered one or one that the test gives, a Secret one that the test gives;
* a service-account token is signed by the test, for the pod's account;
* port N of a pod is a free port of 127.0.0.1, if the pod listens on 0.0.0.0:N;
* SERVICE.NAMESPACE.svc:PORT is the port of the pod that the rendered Service selects;
* a hostPath is that directory of this machine, an emptyDir or a claim a new one, wherever they are
  mounted;
* a pod and its job have the name of the workload.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from services.local.process import LOOPBACK, ChildProcess
from tests.harness.databases import Store
from tests.harness.local_servers import free_ports
from tests.helm.chart import Object, Rendered, pod_spec

_SERVED = ("Deployment", "DaemonSet")
_SERVICE_ADDRESS = re.compile(r"([a-z0-9-]+)\.([a-z0-9-]+)\.svc:(\d+)")
_EVERY_ADDRESS = re.compile(r"(?:0\.0\.0\.0|\[::\]):(\d+)")
_VARIABLE = re.compile(r"\$\((\w+)\)")
_RUN_TIMEOUT_S = 240.0
_PROBE_TIMEOUT_S = 5.0

Secrets = Mapping[str, Mapping[str, str]]
Container = dict[str, Any]
Sign = Callable[[str, str, int], str]
"""Make a token of a service account of the release, for an audience and some seconds."""


class MissingReferenceError(Exception):
    """What a container refers to is not there: the kubelet would not start it."""


@dataclass(frozen=True)
class Execution:
    """How a process is to be started."""

    argv: list[str]
    environment: dict[str, str]
    directory: Path


class LocalCluster:
    """The pods of one release, one of each workload. Stop them with `stop`.

    Attributes:
        sign: signs the service-account tokens of pods that start from now on.
    """

    def __init__(
        self,
        rendered: Rendered,
        secrets: Secrets,
        directory: Path,
        config_maps: Secrets | None = None,
    ) -> None:
        self._rendered = rendered
        self.secrets = secrets
        self._directory = directory
        self._config_maps = config_maps or {}
        self.sign: Sign | None = None
        self._ports = dict(_assigned_ports(rendered))
        self._processes: dict[str, ChildProcess] = {}

    def start(self, kind: str, name: str) -> ChildProcess:
        """Start a service's pod; it need not be ready."""
        execution = self.execution(kind, name)
        process = ChildProcess(name, execution.argv, execution.directory, execution.environment)
        process.start()
        self._processes[name] = process
        return process

    def run(self, kind: str, name: str) -> subprocess.CompletedProcess[str]:
        """Run a Job, or a CronJob's job, to its end."""
        execution = self.execution(kind, name)
        return subprocess.run(
            execution.argv,
            env=execution.environment,
            cwd=execution.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_RUN_TIMEOUT_S,
            check=False,
        )

    def stop(self) -> None:
        for process in self._processes.values():
            process.stop()

    def passes(self, kind: str, name: str, probe: str) -> bool:
        """Whether a probe of the pod passes now, asked as the kubelet asks."""
        asked = _container(self._rendered.one(kind, name))[probe]["grpc"]
        address = self.address(name, asked["port"])
        with grpc.insecure_channel(address) as channel:
            request = HealthCheckRequest(service=asked["service"])
            try:
                answer = HealthStub(channel).Check(request, timeout=_PROBE_TIMEOUT_S)
            except grpc.RpcError:
                return False
        return bool(answer.status == HealthCheckResponse.SERVING)

    def address(self, name: str, port: int) -> str:
        """Where on this machine a workload's container port is."""
        return f"{LOOPBACK}:{self._ports[name, port]}"

    def execution(self, kind: str, name: str) -> Execution:
        """What the kubelet would start.

        Raises:
            MissingReferenceError: a ConfigMap, a Secret or a key of one is not there.
        """
        workload = self._rendered.one(kind, name)
        container = _container(workload)
        directory = self._directory / name
        directory.mkdir(exist_ok=True)
        mounts = dict(self._mounts(workload, directory))

        def here(text: str) -> str:
            return self._localised(name, text, mounts)

        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        variables = dict(self._environment(name, container))
        environment = {variable: here(value) for variable, value in variables.items()}
        command = [
            _VARIABLE.sub(lambda match: variables.get(match[1], match[0]), text)
            for text in [*container["command"], *container.get("args", ())]
        ]
        return Execution(
            [here(text) for text in command],
            {"PATH": path, **environment},
            Path(here(container["workingDir"])) if "workingDir" in container else directory,
        )

    def _environment(self, name: str, container: Container) -> Iterator[tuple[str, str]]:
        for source in container.get("envFrom", ()):
            yield from self._config_map(source["configMapRef"]["name"]).items()
        for variable in container.get("env", ()):
            if "value" in variable:
                yield variable["name"], variable["value"]
            elif "fieldRef" in variable["valueFrom"]:
                yield variable["name"], name
            else:
                yield variable["name"], self._secret(**variable["valueFrom"]["secretKeyRef"])

    def _config_map(self, name: str) -> Mapping[str, str]:
        if name in self._config_maps:
            return self._config_maps[name]
        if name not in [o["metadata"]["name"] for o in self._rendered.of_kind("ConfigMap")]:
            raise MissingReferenceError(f"there is no ConfigMap {name}")
        data: dict[str, str] = self._rendered.one("ConfigMap", name)["data"]
        return data

    def _secret(self, name: str, key: str) -> str:
        if name not in self.secrets:
            raise MissingReferenceError(f"there is no Secret {name}")
        if key not in self.secrets[name]:
            raise MissingReferenceError(f"the Secret {name} has no key {key}")
        return self.secrets[name][key]

    def _files(self, workload: Object, volume: Object) -> Iterator[tuple[str, str]]:
        """What the kubelet would write into a volume: name and content of each file."""
        if "secret" in volume:
            name = volume["secret"]["secretName"]
            every = [{"key": key, "path": key} for key in self.secrets.get(name, ())]
            for item in volume["secret"].get("items", every):
                yield item["path"], self._secret(name, item["key"])
        elif "configMap" in volume:
            yield from self._config_map(volume["configMap"]["name"]).items()
        for source in volume.get("projected", {}).get("sources", ()):
            token = source["serviceAccountToken"]
            account = pod_spec(workload)["serviceAccountName"]
            assert self.sign is not None
            yield token["path"], self.sign(account, token["audience"], token["expirationSeconds"])

    def _mounts(self, workload: Object, directory: Path) -> Iterator[tuple[str, Path]]:
        volumes = {volume["name"]: volume for volume in pod_spec(workload).get("volumes", ())}
        for mount in _container(workload).get("volumeMounts", ()):
            volume = volumes[mount["name"]]
            if "hostPath" in volume:
                yield mount["mountPath"], Path(volume["hostPath"]["path"])
            else:
                made = directory / mount["name"]
                made.mkdir(exist_ok=True)
                for name, content in self._files(workload, volume):
                    (made / name).write_text(content)
                yield mount["mountPath"], made

    def _localised(self, name: str, text: str, mounts: Mapping[str, Path]) -> str:
        text = _EVERY_ADDRESS.sub(lambda match: self.address(name, int(match[1])), text)
        text = _SERVICE_ADDRESS.sub(lambda match: self._service(match[1], int(match[3])), text)
        if not mounts:
            return text
        # All at once: where a mount is here may itself be below /tmp, which is another mount.
        paths = "|".join(re.escape(path) for path in sorted(mounts, key=len, reverse=True))
        mounted = re.compile(rf"(?<![\w/.])(?:{paths})(?=[/,]|$)")
        return mounted.sub(lambda match: str(mounts[match[0]]), text)

    def _service(self, service_name: str, port: int) -> str:
        """Where on this machine a Service's port leads to."""
        spec = self._rendered.one("Service", service_name)["spec"]
        (target,) = [entry["targetPort"] for entry in spec["ports"] if entry["port"] == port]
        (workload,) = [o for o in self._rendered.of_kind(*_SERVED) if selects(spec["selector"], o)]
        ports = {entry["name"]: entry["containerPort"] for entry in _container(workload)["ports"]}
        return self.address(workload["metadata"]["name"], ports[target])


@contextmanager
def released(
    rendered: Rendered,
    store: Store,
    directory: Path,
    secrets: Secrets,
    config_maps: Secrets | None = None,
) -> Iterator[LocalCluster]:
    """Migrate a release's database, and stop at the end what was started.

    `secrets` are given besides that of the object store.
    """
    keys = {"access-key": store.s3.access_key, "secret-key": store.s3.secret_key}
    secrets = {"sediment-object-store": keys, **secrets}
    cluster = LocalCluster(rendered, secrets, directory, config_maps)
    try:
        migration = cluster.run("Job", "sediment-migration")
        assert migration.returncode == 0, migration.stderr
        yield cluster
    finally:
        cluster.stop()


def values_of(store: Store) -> dict[str, Any]:
    """Return the values of the object store."""
    at = store.s3
    given = {"endpoint": at.endpoint, "region": at.region, "secure": at.secure}
    return {"objectStore": {**given, "bucket": store.bucket}}


def selects(selector: Mapping[str, str], workload: Object) -> bool:
    """Whether a selector finds the pods of a workload."""
    labels: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return selector.items() <= labels.items()


def _container(workload: Object) -> Container:
    (container,) = pod_spec(workload)["containers"]
    only: Container = container
    return only


def _assigned_ports(rendered: Rendered) -> Iterator[tuple[tuple[str, int], int]]:
    """For each workload's name and container port, a free one of this machine."""
    wanted = [
        (workload["metadata"]["name"], entry["containerPort"])
        for workload in rendered.of_kind(*_SERVED)
        for entry in _container(workload)["ports"]
    ]
    return zip(wanted, free_ports(len(wanted)), strict=True)
