"""Keep the counts that must not rise in a table, and say which ones rose."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).with_name("counts.toml")
_HEAD = """\
# What an operation may cost, in counts, which do not depend on the machine. `make bench-check`
# fails if one rises, or rises by more than the operation's tolerance. It is written by
# `make bench-check UPDATE=1`.
"""
_TOLERANCE = "tolerance"


@dataclass(frozen=True)
class Counts:
    """The counts of one operation by name.

    Attributes:
        tolerance: the share by which chance may raise them; 0: they are exact.
    """

    of_one: Mapping[str, float]
    tolerance: float = 0.0


def risen(table: Mapping[str, Counts], found: Mapping[str, Counts]) -> Iterator[str]:
    """Yield a line for each count above the table's; one that is not there may be 0."""
    for operation, counts in found.items():
        known = table.get(operation, Counts({}))
        for name, value in counts.of_one.items():
            before = known.of_one.get(name, 0)
            if value > before * (1 + known.tolerance):
                yield f"{operation}: {name} rose from {before:g} to {value:g}"


def fallen(table: Mapping[str, Counts], found: Mapping[str, Counts]) -> Iterator[str]:
    """Yield a line for each count below the table's."""
    for operation, counts in found.items():
        known = table.get(operation, Counts({}))
        for name, before in known.of_one.items():
            value = counts.of_one.get(name, 0)
            if value < before * (1 - known.tolerance):
                yield f"{operation}: {name} fell from {before:g} to {value:g}"


def to_toml(table: Mapping[str, Counts]) -> str:
    sections = [_HEAD]
    for operation, counts in table.items():
        lines = [f'["{operation}"]']
        lines += [f"{_TOLERANCE} = {counts.tolerance:g}"] if counts.tolerance else []
        lines += [f'"{name}" = {value:g}' for name, value in sorted(counts.of_one.items())]
        sections.append("\n".join(lines) + "\n")
    return "\n".join(sections)


def from_toml(text: str) -> dict[str, Counts]:
    return {
        operation: Counts(
            {name: value for name, value in values.items() if name != _TOLERANCE},
            values.get(_TOLERANCE, 0.0),
        )
        for operation, values in tomllib.loads(text).items()
    }
