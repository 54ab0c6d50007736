"""Check that each check behind the verdict of `python -m demos broker` can fail."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from demos.broker_report import DemoBrokerReport, Reading, as_json, summary
from demos.tier import Segment
from services.cli.output import EXIT_USAGE


def reading(failures: Sequence[str] = (), from_tier: int = 1, misplaced: int = 0) -> Reading:
    return Reading("now", 2, failures, from_tier, 2 - from_tier, misplaced, 0.1)


def good_report() -> DemoBrokerReport:
    return DemoBrokerReport(
        "4.4.0",
        records=2,
        segments=[
            Segment(0, 0, 100, on_disk=False, in_tier=True),
            Segment(1, None, 100, on_disk=True, in_tier=False),
        ],
        is_each_segment_stored=True,
        readings=[reading()],
        rlm_kills=1,
        broker_restarts=1,
    )


def test_a_show_in_which_all_was_right_ends_with_zero_and_one_line() -> None:
    report = good_report()
    assert report.exit_code == 0
    assert len(summary(report)) == 1
    assert as_json(report)["left_the_disk"] == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"readings": []},
        {"readings": [reading(), reading(["offset 1: did not come"])]},
        {"readings": [reading(from_tier=0)]},
        {"readings": [reading(misplaced=1)]},
        {"segments": [Segment(0, 1, 100, on_disk=True, in_tier=True)]},
        {"lost_offsets": [1]},
        {"is_each_segment_stored": False},
        {"rlm_kills": 0},
        {"broker_restarts": 0},
    ],
    ids=str,
)
def test_each_fault_sets_exit_code_one_and_is_named(wrong: dict[str, Any]) -> None:
    report = replace(good_report(), **wrong)
    assert report.exit_code == 1
    assert any(line.startswith("NOT SO: ") for line in summary(report))


def test_a_record_that_differs_is_named() -> None:
    report = replace(good_report(), readings=[reading(["offset 1: is not as it was sent"])])
    first, *rest = summary(report)
    assert "1 DIFFERENT in 1 reading;" in first
    assert "now: offset 1: is not as it was sent" in rest


@pytest.mark.deep
def test_a_directory_without_a_broker_is_logged_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "demos", "broker", "--kafka", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (EXIT_USAGE, "")
    assert done.stderr.startswith(f"sediment: --kafka {tmp_path}: has no jars of a Kafka broker")
    assert done.stderr.count("\n") == 1
