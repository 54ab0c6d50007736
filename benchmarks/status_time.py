"""Measure status_time: how much longer `sediment status` takes than `sediment --version`."""

import os
import statistics
import subprocess
import sys
import time

from benchmarks.measure import ROUNDS, Result, Side, counted_rounds
from benchmarks.rlmm.database import databases, running_rlmm
from benchmarks.rlmm.histories import Layout
from services.local.stack import own_environment

LAYOUT = Layout(1_000, 4)


def run() -> Result:
    """Run both commands alternately, as processes; the figure is the difference, seconds."""
    status, version = Side("sediment status"), Side("sediment --version")
    with running_rlmm(databases().history(LAYOUT)) as rlmm:
        for _ in counted_rounds("status_time", ROUNDS):
            _measure(status, "status", "--rlmm", rlmm.address)
            _measure(version, "--version")
    samples = [a - b for a, b in zip(status.samples, version.samples, strict=True)]
    conditions: dict[str, object] = {"rounds": ROUNDS, "cores": os.cpu_count(), "partitions": 1_000}
    value = statistics.median(samples)
    return Result("status_time", "s", value, samples, status, version, conditions)


def _measure(side: Side, *arguments: str) -> None:
    command = [sys.executable, "-m", "services.cli", *arguments]
    before, started = os.times(), time.perf_counter()
    done = subprocess.run(
        command, env=own_environment({}), capture_output=True, text=True, check=False
    )
    side.samples.append(time.perf_counter() - started)
    after = os.times()
    user_s = after.children_user - before.children_user
    side.cpu_seconds.append(user_s + after.children_system - before.children_system)
    # Histories have stuck copies, which are a warning.
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr)
