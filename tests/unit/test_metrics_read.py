"""Check that a test reads each metric of docs/reference/metrics.md.

A test reads a metric if a string of its file has the metric's name, or if the name is one string of
the file behind another: helpers put the names of related metrics together. The strings of the
harness's modules that it imports are the file's, too.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tools.reference import PREFIX, metrics_markdown

TESTS = Path(__file__).parents[1]
# These name every metric, or those of alerts and dashboard, and read no value.
NO_READERS = {"test_metrics_reference.py", "test_alerts.py", "test_alert_rules.py"}
ROW = re.compile(rf"^\| `({PREFIX}\w+)` \| (\w+) ", re.MULTILINE)
WORD = re.compile(r"\w+")
HARNESS = re.compile(r"^from tests\.(harness\.\w+) import", re.MULTILINE)
SUFFIXES = ("", "_total", "_bucket", "_sum", "_count")


def metrics() -> list[str]:
    """Return the names on the page, without the suffix of counters."""
    return [
        name.removesuffix("_total") if kind == "counter" else name
        for name, kind in ROW.findall(metrics_markdown())
    ]


def words(source: str) -> Iterator[str]:
    """Yield the words of all strings of a file, but not those of docstrings and names."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from WORD.findall(node.value)


@cache
def read_names() -> frozenset[str]:
    """Return every name of a metric that a test can read."""
    found: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        if path.name not in NO_READERS:
            source = path.read_text()
            imported = (TESTS / f"{name.replace('.', '/')}.py" for name in HARNESS.findall(source))
            found |= names(source, *(module.read_text() for module in imported))
    return frozenset(found)


def names(*sources: str) -> set[str]:
    """Return what can be put together of the words of these files and begins with our prefix."""
    if not any(PREFIX in source for source in sources):
        return set()
    parts = {word for source in sources for word in words(source)}
    ours = {part for part in parts if part.startswith(PREFIX)}
    prefixes = {part for part in ours if part.endswith("_")}
    suffixes = {part for part in parts if part.startswith("_")} | {""}
    return ours | {p + part + s for p in prefixes for part in parts for s in suffixes}


@pytest.mark.deep
def test_each_metric_is_read_by_a_test() -> None:
    found = read_names()
    unread = [m for m in metrics() if not any(m + suffix in found for suffix in SUFFIXES)]
    assert unread == [], "write a test that fails when the metric is not moved"


def test_names_are_found_in_full_and_put_together() -> None:
    source = """
def read(name):
    return value(f"sediment_rlm_{name}_total")

assert read("reads") == {"writes": 1}
assert 'sediment_rpc_seconds_count{code="OK"}' in page
"""
    found = names(source)
    assert {"sediment_rlm_reads", "sediment_rlm_writes", "sediment_rpc_seconds_count"} <= found
    assert "sediment_rlm_other" not in found
