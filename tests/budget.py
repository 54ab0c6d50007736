"""Keep the quick tests quick: measure each test's CPU time, fail those over the budget.

CPU time of the test's own process in its call phase counts, so that a busy machine fails no test.
On a busy machine the same work takes more CPU time too, because its cores share caches and units: a
loop that is measured beside a costly test says how much more. Threads that other tests left count
as well, so that a test fails only at twice the budget; the summary names those over it.
Wall time is printed and never fails. Tests under tests/deep, and tests with the marker `deep`, have
no budget, and neither have the suites with a target of their own (kafka, plugin, spark, helm).
"""

import json
import os
import statistics
import time
from collections.abc import Generator
from pathlib import Path

import pytest

BUDGET_S = 1.0
FAILS_AT_S = 2 * BUDGET_S
WALL_WARNING_S = 5.0
_SHOWN = 10
_DEEP = Path(__file__).parent / "deep"
# Hypothesis prepares its alphabets in the first property test of a machine.
_UNBOUNDED = ("deep", "property", "kafka", "plugin", "spark", "helm", "minio")


def _loop_cpu_s() -> float:
    started_s = time.thread_time()
    sum(range(500_000))
    return time.thread_time() - started_s


_BEST_LOOP_S = min(_loop_cpu_s() for _ in range(10))


def _slowness() -> float:
    """Return how many times as long as at its best this machine takes for the same work."""
    return max(1.0, statistics.median(_loop_cpu_s() for _ in range(9)) / _BEST_LOOP_S)


def _is_bounded(item: pytest.Item) -> bool:
    return not any(item.get_closest_marker(name) for name in _UNBOUNDED)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies in tests/deep as deep, and property tests as such, before `-m` selects."""
    for item in items:
        if _DEEP in item.path.parents:
            item.add_marker("deep")
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("property")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Run one test and fail it if it used more CPU time than the budget."""
    started_s, started_cpu_s = time.monotonic(), time.process_time()
    try:
        result = yield
    finally:
        cpu_s = time.process_time() - started_cpu_s
        item.user_properties.append(("cpu_s", round(cpu_s, 3)))
        item.user_properties.append(("wall_s", round(time.monotonic() - started_s, 3)))
        item.user_properties.append(("over_budget", cpu_s > BUDGET_S and _is_bounded(item)))
    if cpu_s > FAILS_AT_S and _is_bounded(item) and cpu_s > FAILS_AT_S * _slowness():
        pytest.fail(
            f"used {cpu_s:.2f} s of CPU, over the budget of {BUDGET_S:g} s: make it cheaper, or "
            "mark it deep (CONTRIBUTING.md)",
            pytrace=False,
        )
    return result


class SlowestTests:
    """Print the tests that used the most CPU and wall time; runs where the results are gathered."""

    def __init__(self) -> None:
        self._times: dict[str, tuple[float, float]] = {}
        self._over: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            found = dict(report.user_properties)
            cpu_s, wall_s = found.get("cpu_s", 0.0), found.get("wall_s", 0.0)
            assert isinstance(cpu_s, float)
            assert isinstance(wall_s, float)
            self._times[report.nodeid] = (cpu_s, wall_s)
            if found.get("over_budget"):
                self._over.append(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._times:
            return
        by_wall = sorted(self._times.items(), key=lambda each: -each[1][1])[:_SHOWN]
        total_cpu_s = sum(cpu_s for cpu_s, _ in self._times.values())
        terminalreporter.section(f"slowest tests ({total_cpu_s:.0f} s of CPU time in all calls)")
        for name, (cpu_s, wall_s) in by_wall:
            mark = "  slow" if wall_s > WALL_WARNING_S else ""
            terminalreporter.write_line(f"{wall_s:7.2f} s, CPU {cpu_s:5.2f} s  {name}{mark}")
        for name in sorted(self._over):
            terminalreporter.write_line(f"over the budget of {BUDGET_S:g} s of CPU: {name}")
        if path := os.environ.get("TEST_TIMES"):
            Path(path).write_text(json.dumps(self._times, indent=1))


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(SlowestTests())
