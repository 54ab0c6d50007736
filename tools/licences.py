"""Write docs/reference/licences.md from the lock and the packages' metadata: `make licences`."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from packaging.markers import Marker

from supply_chain.bill_of_materials import ALLOWED, Component, canonical, check_allowed, licence_of
from supply_chain.npm import UPLOT
from supply_chain.requirements import Locked, locked

SETS = {
    "services": "both images",
    "tracing": "the image of the services",
    "spark": "the Spark image",
    "embedded": "`sediment up`",
    "kafka-demo": "demos, tests",
    "hdfs": "services on HDFS",
    "build": "building",
    "sbom": "building",
    "console": "the console",
    "dev": "tests",
    "browser": "tests",
}
"""Set of the lock -> what it is for; a package counts for the first that needs it."""

_HEADER = """# Licences of dependencies

Written by `make licences` from requirements.lock and the packages' metadata; `make sbom` writes the
same as CycloneDX files. A package that bundles other libraries carries their licences with it.

## Allowed

A build of an image fails for a dependency with any other licence.

| licence | why |
|---|---|
"""
_PYTHON = """
## Python packages

| package | version | licence | for |
|---|---|---|---|
"""
_NPM = """
## In the console's page

| package | version | licence |
|---|---|---|
"""
_JAVA = """
## In the jar of the Kafka plugin

| artifact | version | licence |
|---|---|---|
"""


def page(licences: Mapping[str, str], jar: list[Component]) -> str:
    """Return the whole page, given the licence of each Python package and the jar's components."""
    allowed = "".join(f"| {licence} | {why} |\n" for licence, why in ALLOWED.items())
    python = "".join(
        f"| {name} | {versions} | {licences[name]} | {purpose} |\n"
        for name, versions, purpose in packages()
    )
    npm = f"| {UPLOT.name} | {UPLOT.version} | {UPLOT.licence} |\n"
    return _HEADER + allowed + _PYTHON + python + _NPM + npm + _JAVA + "".join(java_rows(jar))


def packages() -> Iterator[tuple[str, str, str]]:
    """Yield name, versions and purpose of each locked package that Linux or macOS needs."""
    purposes: dict[str, str] = {}
    for each, purpose in SETS.items():
        for entry in locked(each):
            purposes.setdefault(entry.name, purpose)
    versions: dict[str, list[str]] = {}
    for entry in locked(*SETS):
        if _is_needed(entry):
            versions.setdefault(entry.name, []).append(entry.version)
    for name, found in versions.items():
        yield name, ", ".join(found), purposes[name]


def installed() -> dict[str, str]:
    """Return the licence of each installed package of the lock, from its metadata."""
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--no-validate", sys.executable]
    bill = subprocess.run(command, check=True, capture_output=True, timeout=300).stdout
    wanted = {entry.name for entry in locked(*SETS)}
    components = [c for c in json.loads(bill)["components"] if canonical(c["name"]) in wanted]
    for component in components:
        check_allowed(component)
    return {canonical(component["name"]): licence_of(component) for component in components}


def components_of(bill: Path) -> list[Component]:
    """Return a bill's components after checking their licences."""
    components: list[Component] = json.loads(bill.read_text())["components"]
    for component in components:
        check_allowed(component)
    return components


def java_rows(components: list[Component]) -> Iterator[str]:
    """Yield the table rows of the jar's components."""
    for each in sorted(components, key=lambda c: (c["group"], c["name"])):
        name = f"{each['group']}:{each['name']}"
        yield f"| {name} | {each['version']} | {licence_of(each)} |\n"


def _is_needed(entry: Locked) -> bool:
    """Return whether an entry's marker may hold outside Windows."""
    _, _, marker = entry.text.splitlines()[0].rstrip("\\ ").partition(";")
    return "win32" not in marker or Marker(marker).evaluate({"sys_platform": "linux"})


if __name__ == "__main__":
    sys.stdout.write(page(installed(), components_of(Path(sys.argv[1]))))
