"""Print results as a table of docs/run/capacity.md: `python -m benchmarks.table [OLD NEW]`.

Without arguments it has all of build/bench. OLD and NEW are results, or directories of them, from
before a change and after it; what they have in common is compared, with the counts.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measure import OUTPUT, TOOK

Loaded = dict[str, Any]


def lines() -> Iterator[str]:
    yield "| name | value (spread) | unit | numerator, median | denominator, median | took, s |"
    yield "|---|---|---|---|---|---|"
    for result in _results(OUTPUT).values():
        cells = (
            f"`{result['name']}`",
            _figure(result),
            result["unit"],
            _side(result["numerator"]),
            _side(result["denominator"]),
            str(result["conditions"].get(TOOK, "")),
        )
        yield f"| {' | '.join(cells)} |"


def compared(old: Path, new: Path) -> Iterator[str]:
    """Compare the results, and the counts of each side, that both have."""
    before, after = _results(old), _results(new)
    yield "| name | before | after | after / before |"
    yield "|---|---|---|---|"
    for name in (name for name in before if name in after):
        one, two = before[name], after[name]
        texts = [_figure(one), _figure(two)]
        yield _row(f"`{name}`, {one['unit']}", texts, one["value"], two["value"])
        for side in ("numerator", "denominator"):
            counts, new_counts = (each[side].get("counts", {}) for each in (one, two))
            what = f"{one[side]['what']}, each {one[side].get('operation', '')}"
            for count in dict.fromkeys([*counts, *new_counts]):
                pair = (counts.get(count), new_counts.get(count))
                texts = ["none" if each is None else f"{each:.4g}" for each in pair]
                yield _row(f"{what}: {count}", texts, *pair)


def _row(what: str, texts: list[str], before: float | None, after: float | None) -> str:
    change = f"{after / before:.2f}" if before and after is not None else ""
    return f"| {' | '.join([what, *texts, change])} |"


def _results(path: Path) -> dict[str, Loaded]:
    """Read a result, or all of a directory, by name."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    return {result["name"]: result for result in (json.loads(f.read_text()) for f in files)}


def _figure(result: Loaded) -> str:
    """Return the value and its spread."""
    if result["value"] is None:
        return "no result"
    samples = result["samples"]
    return f"{result['value']:.2f} ({min(samples):.2f} - {max(samples):.2f})"


def _side(side: Loaded) -> str:
    samples = sorted(side["samples"])
    return f"{side['what']}: {samples[len(samples) // 2]:.0f}" if samples else side["what"]


def main(paths: list[str]) -> None:
    if len(paths) not in (0, 2):
        raise SystemExit("usage: python -m benchmarks.table [OLD NEW]")
    print("\n".join(compared(*map(Path, paths)) if paths else lines()))


if __name__ == "__main__":
    main(sys.argv[1:])
