"""Print build/bench as the table of docs/run/capacity.md: `python -m benchmarks.table`."""

import json
from collections.abc import Iterator
from typing import Any

from benchmarks.measure import OUTPUT


def lines() -> Iterator[str]:
    yield "| name | value | spread | unit | numerator, median | denominator, median |"
    yield "|---|---|---|---|---|---|"
    for path in sorted(OUTPUT.glob("*.json")):
        result = json.loads(path.read_text())
        samples = result["samples"]
        has_result = result["value"] is not None
        cells = (
            f"`{result['name']}`",
            f"{result['value']:.2f}" if has_result else "no result",
            f"{min(samples):.2f} - {max(samples):.2f}" if has_result else "",
            result["unit"],
            _side(result["numerator"]),
            _side(result["denominator"]),
        )
        yield f"| {' | '.join(cells)} |"


def _side(side: dict[str, Any]) -> str:
    samples = sorted(side["samples"])
    return f"{side['what']}: {samples[len(samples) // 2]:.0f}" if samples else side["what"]


if __name__ == "__main__":
    print("\n".join(lines()))
