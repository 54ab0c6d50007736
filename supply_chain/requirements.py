"""Print the part of requirements.lock, with its hashes, that some sets of dependencies need.

    python -m supply_chain.requirements services embedded > build/requirements.txt
    pip install --require-hashes --requirement build/requirements.txt

The set `services` is the project's own dependencies; the others are its extras. Uses the standard
library alone, because nothing is installed yet.
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supply_chain.bill_of_materials import canonical

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
SERVICES = "services"


@dataclass(frozen=True)
class Locked:
    """One entry of the lock: a version of a package, for the platforms of its marker."""

    name: str
    version: str
    required_by: frozenset[str]
    text: str


def locked(*sets: str) -> list[Locked]:
    """Return the entries that the sets need, in the lock's order."""
    entries = list(_entries())
    needed = {name for each in sets for name in _declared(each)}
    missing = needed - {entry.name for entry in entries}
    if missing:
        raise LookupError(f"{LOCK.name} lacks {', '.join(sorted(missing))}; run `make lock`")
    while more := {e.name for e in entries if e.required_by & needed} - needed:
        needed |= more
    return [entry for entry in entries if entry.name in needed]


def sets() -> list[str]:
    """Return the names that `locked` takes."""
    return [SERVICES, *_project()["optional-dependencies"]]


def _entries() -> Iterator[Locked]:
    for text in re.split(r"^(?=\w)", LOCK.read_text(), flags=re.MULTILINE)[1:]:
        name, version = text.split(maxsplit=1)[0].split("==")
        # uv's annotation: "# via a", or "# via" and a line for each.
        parents = re.findall(r"^    #(?: via|  ) +(\S+)", text, re.MULTILINE)
        yield Locked(name, version, frozenset(parents), text)


def _declared(name: str) -> set[str]:
    project = _project()
    if name == SERVICES:
        return _names(project["dependencies"])
    extras = project["optional-dependencies"]
    if name not in extras:
        raise LookupError(f"pyproject.toml has no extra {name!r}; it has {', '.join(extras)}")
    return _names(extras[name])


def _names(requirements: Iterable[str]) -> set[str]:
    return {canonical(re.split(r"[^\w.-]", text, maxsplit=1)[0]) for text in requirements}


def _project() -> dict[str, Any]:
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])


if __name__ == "__main__":
    sys.stdout.writelines(entry.text for entry in locked(*sys.argv[1:]))
