"""Check that two results of a benchmark are compared with their counts."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.measure import Result, Side
from benchmarks.table import compared


def _write(path: Path, value: float | None, counts: dict[str, float]) -> Path:
    samples = [] if value is None else [value - 0.1, value, value + 0.1]
    top = Side("copy, MiB/s", operation="copy", counts=counts)
    result = Result("rsm_copy", "ratio", value, samples, top, Side("bare client"), {})
    path.mkdir()
    (path / "rsm_copy.json").write_text(json.dumps(asdict(result)))
    return path


def test_a_figure_and_its_counts_are_compared(tmp_path: Path) -> None:
    old = _write(tmp_path / "old", 0.8, {"requests": 4, "statements": 2})
    new = _write(tmp_path / "new", 1.2, {"requests": 3, "copied": 7})
    assert list(compared(old, new))[2:] == [
        "| `rsm_copy`, ratio | 0.80 (0.70 - 0.90) | 1.20 (1.10 - 1.30) | 1.50 |",
        "| copy, MiB/s, each copy: requests | 4 | 3 | 0.75 |",
        "| copy, MiB/s, each copy: statements | 2 | none |  |",
        "| copy, MiB/s, each copy: copied | none | 7 |  |",
    ]


@pytest.mark.parametrize("is_file", [True, False])
def test_a_run_without_a_result_says_so(tmp_path: Path, *, is_file: bool) -> None:
    old, new = _write(tmp_path / "old", None, {}), _write(tmp_path / "new", 1.0, {})
    paths = (path / "rsm_copy.json" if is_file else path for path in (old, new))
    assert list(compared(*paths))[2:] == [
        "| `rsm_copy`, ratio | no result | 1.00 (0.90 - 1.10) |  |"
    ]
