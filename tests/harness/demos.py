"""Run demos as processes: whole demos, and demos that get a signal."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.local.stack import own_environment
from tests.harness.eventually import eventually
from tests.harness.jars import pinned_kafka_version
from tests.harness.processes import runs

_SHOW_TIMEOUT_S = 800
"""Below the 900 s of tests with a demo, so that a timeout reports the demo's output too."""
_END_TIMEOUT_S = 300


@dataclass(frozen=True)
class Shown:
    """The result of one whole demo."""

    exit_code: int
    report: dict[str, Any]
    errors: str
    left_over: list[Path]

    def readings(self, when: str) -> list[dict[str, Any]]:
        return [reading for reading in self.report["readings"] if reading["when"] == when]


@contextmanager
def running_demo(command: Sequence[str], scratch: Path) -> "Iterator[subprocess.Popen[str]]":
    """Run a demo that keeps all its data below `scratch` and prints its report as JSON."""
    scratch.mkdir(mode=0o711)  # PostgreSQL's own user must be able to pass through
    with subprocess.Popen(
        [sys.executable, "-m", "demos", *command, "-o", "json"],
        env=own_environment({"TMPDIR": str(scratch)}),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def show(command: Sequence[str], scratch: Path) -> Shown:
    with running_demo(command, scratch) as process:
        output, errors = process.communicate(timeout=_SHOW_TIMEOUT_S)
    assert process.returncode in (0, 1), errors
    return Shown(process.returncode, json.loads(output), errors, list(scratch.iterdir()))


class BrokerDemoContract:
    """What every demo of a broker shows.

    Attributes:
        left_at_least: segments that leave the disk.
    """

    left_at_least: int

    def test_all_that_the_demo_is_to_prove_holds(self, shown: Shown) -> None:
        assert [name for name, holds in shown.report["checks"].items() if not holds] == []
        assert len(shown.report["checks"]) == 7
        assert shown.exit_code == 0, shown.errors
        assert shown.report["kafka_version"] == pinned_kafka_version()

    def test_most_segments_leave_the_disk_and_the_youngest_stay(self, shown: Shown) -> None:
        on_disk = [segment["on_disk"] for segment in shown.report["segments"]]
        assert on_disk == sorted(on_disk)
        assert shown.report["left_the_disk"] >= self.left_at_least
        assert all(segment["in_tier"] for segment in shown.report["segments"][:-1])

    def test_nothing_is_left_behind(self, shown: Shown) -> None:
        assert shown.left_over == []


def assert_cleans_up(
    command: Sequence[str], scratch: Path, number: signal.Signals, processes: int
) -> None:
    """Assert that a demo with a broker ends all its processes when it gets this signal midway.

    At least `processes` processes must have run.
    """
    with running_demo(command, scratch) as process:
        eventually(lambda: list(scratch.glob("*/kafka/data/orders-0/*.log")), deadline_ms=600_000)
        pid_files = [*scratch.glob("*/data/*/*.pid"), *scratch.glob("*/kafka/*.pid")]
        pids = [int(path.read_text().split()[0]) for path in pid_files]
        process.send_signal(number)
        output, errors = process.communicate(timeout=_END_TIMEOUT_S)
    assert (process.returncode, output) == (128 + number, ""), errors
    assert "Traceback" not in errors
    assert list(scratch.iterdir()) == []
    assert len(pids) >= processes
    eventually(lambda: not [pid for pid in pids if runs(pid)])
