"""Which engine runs a sweep, and what it needs."""

import subprocess
import sys
from pathlib import Path

import pytest

from services.local.stack import own_environment
from tests.harness.tier import HOUR_MS, Tier, a_topic
from tests.spark.commands import Swept, ended

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_500)]


def swept(tier: Tier, topic: str, variables: dict[str, str], program: list[str]) -> Swept:
    """Run a sweep of a topic with no option of an engine, by a program that is `sediment`."""
    addresses = ["--rsm", tier.rsm_process.address, "--rlmm", tier.rlmm_process.address]
    options = [*addresses, "--topic", topic, "--apply", "-o", "json"]
    process = subprocess.Popen(
        [sys.executable, *program, "sweep", "retention", *options],
        env=own_environment(variables),
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    return ended(process)


def due_topic(tier: Tier, segments: int) -> str:
    [tp] = a_topic()
    tier.fill(tp, segments)
    tier.report(tp, segments)
    tier.settings(tp.topic_id, {"retention.ms": str(HOUR_MS)})
    return tp.topic


def test_one_process_sweeps_without_java(tier: Tier, tmp_path: Path) -> None:
    """Nor any other program: nothing is on the PATH."""
    topic = due_topic(tier, 2)
    done = swept(tier, topic, {"PATH": str(tmp_path), "JAVA_HOME": ""}, ["-m", "services.cli"])
    assert (done.exit_code, done.report["engine"]) == (0, "local"), done.stderr
    assert done.report["totals"]["deleted_segments"] == 2
