"""`make helm-check`: all tests of the chart, and a last line that says what was covered."""

import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


class Coverage:
    """A pytest plugin: gathers what passed tests recorded with `record_property`."""

    def __init__(self) -> None:
        self._found: dict[str, set[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            for what, which in report.user_properties:
                self._found.setdefault(what, set()).add(str(which))

    def summary(self) -> str:
        versions = sorted(self._of("kubernetes version")) or ["none"]
        return (
            f"helm-check: 1 chart, {len(self._of('values file'))} values files; "
            f"{len(self._of('object'))} objects, each valid for Kubernetes "
            f"{versions[0]} to {versions[-1]} ({len(versions)} versions); "
            f"{len(self._of('refusal'))} mistakes refused; "
            f"executed: {', '.join(sorted(self._of('process'))) or 'nothing'}; "
            f"installed as the image does: {', '.join(self._of('image')) or 'nothing'}"
        )

    def _of(self, what: str) -> set[str]:
        return self._found.get(what, set())


def main(arguments: list[str]) -> int:
    coverage = Coverage()
    exit_code = pytest.main([str(FOLDER), *arguments], plugins=[coverage])
    sys.stdout.write(coverage.summary() + "\n")
    return int(exit_code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
