"""`python -m demos broker` as a process: what it shows holds, and it cleans up however it ends."""

import signal
from pathlib import Path

import pytest

from tests.harness.demos import Shown, assert_cleans_up, show
from tests.harness.jars import ensure_kafka_jars, pinned_kafka_version

# `.ci/run` runs the demo itself.
pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(900)]


def command() -> list[str]:
    return ["broker", "--kafka", str(ensure_kafka_jars())]


@pytest.fixture(scope="module")
def shown(server_directory: Path) -> Shown:
    return show(command(), server_directory / "demo-broker")


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


def test_every_record_is_read_back_before_and_after_a_kill_of_rlm(shown: Shown) -> None:
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
def test_a_demo_that_is_signalled_to_end_cleans_up_its_broker(
    server_directory: Path, number: signal.Signals
) -> None:
    scratch = server_directory / f"ended-demo-broker-{number.name}"
    assert_cleans_up(command(), scratch, number, processes=5)
