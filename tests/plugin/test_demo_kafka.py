"""`python -m demos kafka` as a process: what it shows holds, and it cleans up however it ends."""

import signal
from pathlib import Path

import pytest

from tests.harness.demos import BrokerDemoContract, Shown, assert_cleans_up, show
from tests.harness.jars import ensure_kafka_jars
from tests.harness.kafka_broker import plugin_jar

# `.ci/run` runs the demo itself.
pytestmark = [pytest.mark.plugin, pytest.mark.long, pytest.mark.timeout(900)]


def command() -> list[str]:
    return ["kafka", "--plugin", str(plugin_jar()), "--kafka", str(ensure_kafka_jars())]


@pytest.fixture(scope="module")
def shown(server_directory: Path) -> Shown:
    return show(command(), server_directory / "demo-kafka")


class TestDemo(BrokerDemoContract):
    left_at_least = 5

    def test_each_segment_in_the_tier_has_its_objects(self, shown: Shown) -> None:
        assert shown.report["objects"] == 3 * (len(shown.report["segments"]) - 1)


@pytest.mark.parametrize("when", ["offloaded", "restarted"])
def test_every_record_is_read_from_tier_and_disk(shown: Shown, when: str) -> None:
    uncommitted, committed = shown.readings(when)
    assert uncommitted["records"] == shown.report["records"]
    assert committed["records"] == shown.report["records"] - shown.report["aborted_records"]
    assert shown.report["aborted_records"] > 0
    for reading in (uncommitted, committed):
        assert (reading["different_records"], reading["first_offset"]) == (0, 0)
        assert reading["tier_bytes"] > reading["disk_bytes"] > 0
    # The plugin may still hold what the reading before has read.
    assert uncommitted["rsm_fetches"] >= shown.report["left_the_disk"]


def test_local_records_are_not_read_from_the_tier(shown: Shown) -> None:
    (reading,) = shown.readings("disk only")
    assert (reading["rsm_fetches"], reading["tier_bytes"]) == (0, 0)
    assert reading["records"] > 0


def test_expired_records_are_not_read(shown: Shown) -> None:
    (expired,) = shown.report["expired"]
    (reading,) = shown.readings("expired")
    assert reading["first_offset"] == expired["last_offset"] + 1
    assert reading["records"] == shown.report["records"] - expired["last_offset"] - 1


def test_last_line_is_a_summary(shown: Shown) -> None:
    line = shown.errors.splitlines()[-1]
    assert line.startswith(f"{shown.report['records']:,} records, all equal in 6 readings; ")
    assert "no object is left" in line


def test_demo_stops_its_broker_on_a_signal(server_directory: Path) -> None:
    scratch = server_directory / "ended-demo-kafka"
    assert_cleans_up(command(), scratch, signal.SIGTERM, processes=4)
