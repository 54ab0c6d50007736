"""`python -m demos broker` as a process: what it shows holds, and it cleans up however it ends."""

import signal
from pathlib import Path

import pytest

from tests.harness.demos import BrokerDemoContract, Shown, assert_cleans_up, show
from tests.harness.jars import ensure_kafka_jars

# `.ci/run` runs the demo itself.
pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(900)]


def command() -> list[str]:
    return ["broker", "--kafka", str(ensure_kafka_jars())]


@pytest.fixture(scope="module")
def shown(server_directory: Path) -> Shown:
    return show(command(), server_directory / "demo-broker")


class TestDemo(BrokerDemoContract):
    left_at_least = 8


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_demo_that_is_signalled_to_end_cleans_up_its_broker(
    server_directory: Path, number: signal.Signals
) -> None:
    scratch = server_directory / f"ended-demo-broker-{number.name}"
    assert_cleans_up(command(), scratch, number, processes=5)
