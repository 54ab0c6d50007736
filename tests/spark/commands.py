"""`sediment sweep` as a user calls it: a process, its report, its exit code."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from services.local.stack import own_environment
from tests.harness.sediment_command import check_printed
from tests.harness.tier import Tier

# A guard against hanging: ten times what a sweep needs on a quiet machine.
TIMEOUT_S = 600
MASTER = "local[1]"


@dataclass(frozen=True)
class Swept:
    """What a sweep answered; `report` is empty where it printed none."""

    exit_code: int
    report: dict[str, Any]
    stderr: str

    @property
    def outcomes(self) -> dict[str, str]:
        """Of each segment, by its id."""
        return {s["segment_id"]: s["outcome"] for s in self.report["segments"]}


def command(tier: Tier, kind: str, *options: str) -> list[str]:
    addresses = ["--rsm", tier.rsm_process.address, "--rlmm", tier.rlmm_process.address]
    start = [sys.executable, "-m", "services.cli", "sweep", kind, *addresses]
    spark = ["--engine", "spark", "--master", MASTER, "--driver-memory", "512m"]
    return [*start, *spark, "-o", "json", *options]


def start(argv: list[str], variables: Mapping[str, str] | None = None) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        argv,
        env=own_environment({**(variables or {})}),
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def ended(
    process: "subprocess.Popen[str]", printed: tuple[str, ...] = ("sweep", "retention")
) -> Swept:
    """Wait for a job's end, and compare what it printed with the description of that command's."""
    with process:
        output, errors = process.communicate(timeout=TIMEOUT_S)
    check_printed((*printed, "-o", "json"), output)
    return Swept(process.returncode, json.loads(output) if output else {}, errors)


def traces_of_children(pid: int) -> dict[str, bytes]:
    """Return environment and arguments of each process below one, by their paths in /proc."""
    found = {}
    for child in psutil.Process(pid).children(recursive=True):
        for name in ("environ", "cmdline"):
            path = Path(f"/proc/{child.pid}/{name}")
            with suppress(ProcessLookupError, FileNotFoundError):  # it has just ended
                found[str(path)] = path.read_bytes()
    return found


def plan_id_of(swept: Swept) -> str:
    """As it is said before Spark starts."""
    found = re.search(r"plan (\w{32}): starting Spark", swept.stderr)
    assert found is not None, swept.stderr
    return found[1]


def sweep(tier: Tier, kind: str, *options: str) -> Swept:
    """To its end, whatever that is."""
    return ended(start(command(tier, kind, *options)))
