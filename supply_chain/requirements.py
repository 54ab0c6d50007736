"""Print the part of requirements.lock, with its hashes, that some sets of dependencies need.

    python -m supply_chain.requirements services embedded > build/requirements.txt
    pip install --require-hashes --requirement build/requirements.txt

The set `services` is the project's own dependencies; the others are its extras. `--lock FILE`
before the sets takes another lock: requirements-export.lock, for `main.py export`. Uses the
standard library alone, because nothing is installed yet.
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supply_chain.bill_of_materials import canonical

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
EXPORT_LOCK = ROOT / "requirements-export.lock"
"""Of the environment of `main.py export`: an older Spark, and nothing but `services`, `spark` and
`build`."""

SERVICES = "services"


@dataclass(frozen=True)
class Locked:
    """One entry of the lock: a version of a package, for the platforms of its marker."""

    name: str
    version: str
    required_by: frozenset[str]
    text: str


def locked(*sets: str, lock: Path = LOCK) -> list[Locked]:
    """Return the entries of a lock that the sets need, in its order."""
    entries = list(_entries(lock))
    needed = {name for each in sets for name in _declared(each)}
    missing = needed - {entry.name for entry in entries}
    if missing:
        raise LookupError(f"{lock.name} lacks {', '.join(sorted(missing))}; run `make lock`")
    while more := {e.name for e in entries if e.required_by & needed} - needed:
        needed |= more
    return [entry for entry in entries if entry.name in needed]


def sets() -> list[str]:
    """Return the names that `locked` takes."""
    return [SERVICES, *_project()["optional-dependencies"]]


def _entries(lock: Path) -> Iterator[Locked]:
    for text in re.split(r"^(?=\w)", lock.read_text(), flags=re.MULTILINE)[1:]:
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


def main(argv: Sequence[str]) -> None:
    """Print the entries that the command line asks for."""
    lock, names = LOCK, list(argv)
    if names[:1] == ["--lock"]:
        lock, names = ROOT / names[1], names[2:]
    sys.stdout.writelines(entry.text for entry in locked(*names, lock=lock))


if __name__ == "__main__":
    main(sys.argv[1:])
