"""The chart in helm/, rendered by Helm's own library."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import helm_python
import yaml

import services

CHART = Path(services.__file__).parent.parent / "helm"
RELEASE = "sediment"
NAMESPACE = "tier"
_OTHER_BASES = Path(__file__).parent / "bases.yaml"

Values = Mapping[str, Any]
Object = dict[str, Any]
"""A Kubernetes object, as YAML reads it."""


class ChartRefusedError(Exception):
    """Helm does not render these values; the message is Helm's."""


@dataclass(frozen=True)
class Rendered:
    """What `helm install` would send to the cluster, hooks included, and would print."""

    objects: list[Object]
    notes: str

    def one(self, kind: str, name: str) -> Object:
        """The object of this kind and full name."""
        found = [o for o in self.objects if (o["kind"], o["metadata"]["name"]) == (kind, name)]
        if len(found) != 1:
            raise LookupError(f"{len(found)} objects are {kind} {name}")
        return found[0]

    def of_kind(self, *kinds: str) -> list[Object]:
        return [o for o in self.objects if o["kind"] in kinds]


def render(values: Values, release: str = RELEASE) -> Rendered:
    """What `helm install --namespace tier` does with these values.

    Raises:
        ChartRefusedError: the schema or the templates refuse them.
    """
    try:
        with helm_python.Chart.load(CHART) as chart:
            # Rendering alone does not look at the schema, as `helm install` does.
            chart.validate_schema(dict(values))
            files = chart.render(dict(values), name=release, namespace=NAMESPACE)
    except helm_python.HelmError as e:
        raise ChartRefusedError(str(e)) from e
    notes = next(text for path, text in files.items() if path.endswith("NOTES.txt"))
    manifests = [text for path, text in sorted(files.items()) if path.endswith(".yaml")]
    documents = [document for text in manifests for document in yaml.safe_load_all(text)]
    return Rendered([document for document in documents if document], notes)


def lint(values: Values) -> list[str]:
    """What `helm lint --strict` has against these values."""
    report = helm_python.lint(CHART, dict(values), strict=True, namespace=NAMESPACE)
    return [str(error) for error in report["errors"]]


def values_files() -> dict[str, dict[str, Any]]:
    """The files helm/ci/*-values.yaml, each a deployment that somebody could have."""
    paths = sorted((CHART / "ci").glob("*-values.yaml"))
    return {path.name.removesuffix("-values.yaml"): _read(path) for path in paths}


def minimal(*changes: Values) -> dict[str, Any]:
    """The least that the chart takes, with plaintext, changed."""
    return changed(values_files()["minimal"], *changes)


def changed(base: Values, *changes: Values) -> dict[str, Any]:
    """Return a copy of values, changed."""
    values: dict[str, Any] = deepcopy(dict(base))
    for change in changes:
        _overlay(values, deepcopy(dict(change)))
    return values


def _overlay(values: dict[str, Any], change: Values) -> None:
    for key, value in change.items():
        if isinstance(value, Mapping) and isinstance(values.get(key), dict):
            _overlay(values[key], value)
        else:
            values[key] = value


def _read(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load(path.read_text())
    return values


BASES = {
    **values_files(),
    "nothing": {},
    "undecided-tls": {key: value for key, value in minimal().items() if key != "tls"},
    "trial": {"trial": True},
    **{
        name: minimal(values)
        for name, values in _read(Path(__file__).parent / "bases.yaml").items()
    },
}
"""Values by the name that a case gives as its base."""


def executor_pod(rendered: Rendered, executor: str) -> Object:
    """Return the pod from which Spark makes executors, given their component."""
    config = rendered.one("ConfigMap", f"sediment-{executor}")
    pod: Object = yaml.safe_load(config["data"]["pod.yaml"])
    return pod


def pod_spec(workload: Object) -> dict[str, Any]:
    """Return the pod of a workload of whatever kind."""
    spec: dict[str, Any] = workload["spec"]
    if workload["kind"] == "Pod":
        return spec
    if workload["kind"] == "CronJob":
        spec = spec["jobTemplate"]["spec"]
    pod: dict[str, Any] = spec["template"]["spec"]
    return pod
