"""`sediment demo-broker` as a process: what it shows holds, and it cleans up however it ends."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from services.local.environments import own_environment
from tests.harness.eventually import eventually
from tests.harness.kafka_jars import ensure_kafka_jars, pinned_kafka_version
from tests.harness.processes import runs

pytestmark = pytest.mark.kafka

TIMEOUT_S = 280


@dataclass(frozen=True)
class Shown:
    """One whole show."""

    exit_code: int
    report: dict[str, Any]
    errors: str
    left_over: list[Path]


@contextmanager
def running_demo(scratch: Path) -> "Iterator[subprocess.Popen[str]]":
    """A demo that keeps all it has below `scratch`."""
    scratch.mkdir(mode=0o711)  # PostgreSQL's own user must get through
    arguments = ["--kafka", str(ensure_kafka_jars()), "-o", "json"]
    with subprocess.Popen(
        [sys.executable, "-m", "services.cli", "demo-broker", *arguments],
        env=own_environment({"TMPDIR": str(scratch)}),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def shown(server_directory: Path) -> Shown:
    scratch = server_directory / "demo-broker"
    with running_demo(scratch) as process:
        output, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode in (0, 1), errors
    return Shown(process.returncode, json.loads(output), errors, list(scratch.iterdir()))


def test_all_that_the_show_is_to_prove_holds(shown: Shown) -> None:
    assert [name for name, holds in shown.report["checks"].items() if not holds] == []
    assert len(shown.report["checks"]) == 7
    assert shown.exit_code == 0, shown.errors
    assert shown.report["kafka_version"] == pinned_kafka_version()


def test_most_segments_leave_the_disk_and_the_youngest_stay(shown: Shown) -> None:
    on_disk = [segment["on_disk"] for segment in shown.report["segments"]]
    assert on_disk == sorted(on_disk)
    assert shown.report["left_the_disk"] >= 8
    assert all(segment["in_tier"] for segment in shown.report["segments"][:-1])


def test_every_record_comes_back_before_and_after_rlm_was_killed(shown: Shown) -> None:
    before, after = shown.report["readings"]
    assert 0 < before["records"] < after["records"] == shown.report["records"]
    for reading in (before, after):
        assert (reading["different_records"], reading["misplaced"]) == (0, 0)
        assert reading["from_tier"] > 0 < reading["from_disk"]


def test_the_last_line_says_it_in_short(shown: Shown) -> None:
    line = shown.errors.splitlines()[-1]
    assert line.startswith(f"{shown.report['records']:,} records, all equal in 2 readings; ")
    assert "RLM killed 1 x, the broker restarted 1 x" in line


def test_nothing_is_left_behind(shown: Shown) -> None:
    assert shown.left_over == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_show_that_is_told_to_end_cleans_up(
    server_directory: Path, number: signal.Signals
) -> None:
    scratch = server_directory / f"ended-demo-broker-{number.name}"
    with running_demo(scratch) as process:
        eventually(lambda: list(scratch.glob("*/kafka/data/orders-0/*.log")), deadline_ms=120_000)
        pid_files = [*scratch.glob("*/data/*/*.pid"), *scratch.glob("*/kafka/*.pid")]
        pids = [int(path.read_text().split()[0]) for path in pid_files]
        process.send_signal(number)
        output, errors = process.communicate(timeout=120)
    assert (process.returncode, output) == (128 + number, ""), errors
    assert "Traceback" not in errors
    assert list(scratch.iterdir()) == []
    assert len(pids) >= 5
    eventually(lambda: not [pid for pid in pids if runs(pid)])
