"""What values make of the chart: the cases of tests/helm/cases, and the refusals of mistakes.yaml.

A case has `values` over those of a `base`, and what is expected of the objects that are rendered:

* `expect`: for `KIND/NAME` a fragment of the object, or null if there is none; for `KIND` the names
  of all objects of the kind;
* `notes`: texts of the notes; `no-notes`: texts that they must not have;
* `gone`: texts that no object may have, not even in its name.

In a fragment a mapping names some keys, null one that must not be there; `only: true` says that
there are no others. A list names all its entries. Entries of a list that have names are a mapping
by name (mounts by path, grants by identity), and so are options `--KEY=VALUE`; files of TOML and
YAML are read. A workload has its pod and its only container as `pod` and `container`, a network
policy its egress as `reaches`: ports anywhere, `in the release`, or `at peers` of the values.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.rpc.server.policy import parse_policy
from tests.helm.chart import BASES, ChartRefusedError, Object, changed, pod_spec, render
from tests.helm.test_chart_objects import Record

pytestmark = pytest.mark.helm

FOLDER = Path(__file__).parent
NAMES = {"volumeMounts": "mountPath", "grant": "identities"}
POD_MAKERS = ("Deployment", "DaemonSet", "Job", "CronJob", "Pod")


def read_cases() -> Iterator[Any]:
    for path in sorted((FOLDER / "cases").glob("*.yaml")):
        for case in yaml.safe_load(path.read_text()):
            yield pytest.param(case, id=f"{path.stem}: {case['case']}")


def read_mistakes() -> Iterator[Any]:
    for base, mistakes in yaml.safe_load((FOLDER / "mistakes.yaml").read_text()).items():
        for mistake in mistakes:
            yield pytest.param(base, mistake, id=f"{base}: {mistake['error']}")


@pytest.mark.parametrize("case", list(read_cases()))
def test_values_make_objects(case: dict[str, Any]) -> None:
    assert case.keys() <= {"case", "base", "values", "expect", "notes", "no-notes", "gone"}
    found = render(changed(BASES[case.get("base", "minimal")], case.get("values", {})))
    for which, expected in case.get("expect", {}).items():
        kind, _, name = which.partition("/")
        objects = [o for o in found.of_kind(kind) if name in ("", o["metadata"]["name"])]
        if not name:
            assert sorted(o["metadata"]["name"] for o in objects) == expected, kind
        elif expected is None:
            assert objects == [], which
        else:
            assert list(differences(expected, as_fragment(found.one(kind, name)), which)) == []
    assert [text for text in case.get("notes", ()) if text not in found.notes] == []
    assert [text for text in case.get("no-notes", ()) if text in found.notes] == []
    assert [text for text in case.get("gone", ()) if text in str(found.objects)] == []


@pytest.mark.parametrize(("base", "mistake"), list(read_mistakes()))
def test_mistakes_are_refused_with_a_sentence(
    base: str, mistake: dict[str, Any], record_property: Record
) -> None:
    with pytest.raises(ChartRefusedError) as refused:
        render(changed(BASES[base], mistake["values"]))
    # An ellipsis stands for what lies between.
    assert re.search(".*".join(map(re.escape, mistake["error"].split("..."))), str(refused.value))
    record_property("refusal", mistake["error"])


def as_fragment(found: Object) -> Object:
    """Return an object as fragments name its parts."""
    shown: Object = _plain(found, "")
    if found["kind"] in POD_MAKERS:
        shown["pod"] = _plain(pod_spec(found), "")
        (shown["container"],) = shown["pod"]["containers"].values()
    if found["kind"] == "NetworkPolicy":
        rules = [_reached(rule) for rule in found["spec"].get("egress", ())]
        shown["reaches"] = [each for rule in rules for each in rule]
    return shown


def _reached(rule: Object) -> list[str]:
    """Return the ports of a rule, such as `443/TCP`, and which peers have them."""
    ports = [f"{port['port']}/{port['protocol']}" for port in rule["ports"]]
    if ports == ["53/UDP", "53/TCP"]:
        ports = ["DNS"]
    if "to" not in rule:
        return ports
    where = "in the release" if "app.kubernetes.io/instance" in str(rule["to"]) else "at peers"
    return [f"{port} {where}" for port in ports]


def _plain(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        # A variable with a text.
        if value.keys() == {"name", "value"}:
            return value["value"]
        return {name: _plain(each, name) for name, each in value.items()}
    if isinstance(value, str) and key.endswith(".toml"):
        parse_policy(value.encode())  # as strict as the services
        return _plain(tomllib.loads(value), "")
    if isinstance(value, str) and key.endswith(".yaml"):
        return _plain(yaml.safe_load(value), "")
    if not isinstance(value, list):
        return value
    by_name = [_named(each, NAMES.get(key, "name")) for each in value]
    if value and all(by_name) and len(dict(by_name)) == len(value):
        return {name: _plain(each, "") for name, each in by_name}
    return [_plain(each, "") for each in value]


def _named(entry: Any, key: str) -> Any:
    """Return name and content of an entry of a list; None if it has no name."""
    if isinstance(entry, dict) and key in entry:
        name = entry[key]
        return (name[0] if isinstance(name, list) else name), entry
    if isinstance(entry, str) and entry.startswith("--"):
        option, equals, value = entry.rpartition("=")
        return (option, value) if equals else (entry, True)
    return None


def differences(expected: Any, found: Any, path: str) -> Iterator[str]:
    """Yield where an object is not as a fragment says."""
    if isinstance(expected, dict) and isinstance(found, dict):
        if expected.get("only") and found.keys() - expected.keys():
            yield f"{path}: has {sorted(found.keys() - expected.keys())}, too"
        for key, value in expected.items():
            if key != "only":
                yield from differences(value, found.get(key), f"{path}.{key}")
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for number, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from differences(one, other, f"{path}[{number}]")
    elif expected != found or type(expected) is not type(found):
        yield f"{path}: is {found!r} instead of {expected!r}"
