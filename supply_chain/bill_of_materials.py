"""Give each component of a CycloneDX bill of materials a licence in SPDX's terms.

    cyclonedx-py environment ... | python -m supply_chain.bill_of_materials > sbom.json

Fail for a component without a licence, or with one that is not in ALLOWED.
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Component = Mapping[str, Any]

ALLOWED = {
    "0BSD": "permissive",
    "Apache-2.0": "permissive",
    "BSD-2-Clause": "permissive",
    "BSD-3-Clause": "permissive",
    "CC0-1.0": "permissive",
    "ISC": "permissive",
    "MIT": "permissive",
    "MIT-0": "permissive",
    "PSF-2.0": "permissive",
    "Python-2.0": "permissive",
    "Unlicense": "permissive",
    "Zlib": "permissive",
    "MPL-2.0": "copyleft by file; the files are used unchanged",
    "LGPL-2.1-or-later": "copyleft of the library; a package of its own, used unchanged",
    "LGPL-3.0-only": "copyleft of the library; a package of its own, used unchanged",
}
"""SPDX id -> why a dependency may have this licence."""

_CLASSIFIERS = {
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
_READ = {
    "atheris": "Apache-2.0",
    "hdfs-native": "Apache-2.0",
    "kubernetes-validate": "Apache-2.0",
    "lz4": "BSD-3-Clause",
    "mypy-protobuf": "Apache-2.0",
    "pandas": "BSD-3-Clause",
    "protobuf": "BSD-3-Clause",
    "py4j": "BSD-3-Clause",
    "python-snappy": "BSD-3-Clause",
}
"""Package -> what its licence file says, if its metadata names no SPDX id."""


def licence_of(component: Component) -> str:
    """Return the SPDX expression of a component's licence."""
    if stated := _stated_licence(component):
        return stated
    for each in component.get("licenses", ()):
        if each["license"]["name"] in _CLASSIFIERS:
            return _CLASSIFIERS[each["license"]["name"]]
    name = canonical(component["name"])
    if name not in _READ:
        raise LookupError(
            f"{name} {component['version']} states no SPDX licence; read its licence file and add"
            f" it to _READ of {Path(__file__).name}"
        )
    return _READ[name]


def check_allowed(component: Component) -> None:
    """Raise if the licence that applies is not in ALLOWED."""
    expression = licence_of(component)
    for alternatives in expression.split(" AND "):
        if not ALLOWED.keys() & set(alternatives.strip("()").split(" OR ")):
            raise ValueError(
                f"{component['name']} {component['version']} has the licence {expression}, which is"
                f" not allowed; remove the dependency, or add the licence to ALLOWED of"
                f" {Path(__file__).name} and say why"
            )


def complete(bill: dict[str, Any]) -> dict[str, Any]:
    """Check each component's licence, and state what cyclonedx-py leaves out."""
    for component in bill["components"]:
        check_allowed(component)
        if not _stated_licence(component):
            concluded = {"id": licence_of(component), "acknowledgement": "concluded"}
            component["licenses"] = [{"license": concluded}]
        name = canonical(component["name"])
        component.setdefault("purl", f"pkg:pypi/{name}@{component['version']}")
        # Wheels are installed from a directory that is gone by now.
        for reference in component.get("externalReferences", ()):
            if reference["url"].startswith("file:"):
                reference["url"] = reference["url"].rpartition("/")[2]
    return bill


def canonical(name: str) -> str:
    """Return a package's name as a lock writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _stated_licence(component: Component) -> str | None:
    for each in component.get("licenses", ()):
        licence = each.get("license", each)
        if found := licence.get("expression") or licence.get("id"):
            return str(found)
    return None


if __name__ == "__main__":
    json.dump(complete(json.load(sys.stdin)), sys.stdout, indent=1)
