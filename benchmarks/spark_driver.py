"""Measure spark_driver: the driver's memory for a plan of a million segments, beyond one of 10,000.

The driver is the command's Python and its JVM; the executors are processes of their own.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from threading import Event

import psutil

from benchmarks.deployment import Deployment, deployed
from benchmarks.many_segments import make_segments, store_rows
from benchmarks.measure import MIB, QUICK, Result, Side, counted_rounds, peak_rss_bytes
from services.local.stack import own_environment

FEW, MANY = 10_000, 100_000 if QUICK else 1_000_000
PARTITIONS = 200
"""Of the few and of the many alike."""

TOPICS = 10
"""Of the many: as many rows as the benchmark holds in memory at once."""

ROUNDS = 1 if QUICK else 3  # a plan of a million segments takes minutes
MASTER = "local-cluster[2,1,1024]"
_POLL_S = 0.02


def run() -> Result:
    with tempfile.TemporaryDirectory(prefix="sediment-bench-") as name, deployed() as services:
        few, many = Side(f"{FEW:,} segments, MiB"), Side(f"{MANY:,} segments, MiB")
        of_few, of_many = (
            _expired(services, "few", 1, FEW),
            _expired(services, "many", TOPICS, MANY),
        )
        seconds = []
        for _ in counted_rounds("spark_driver", ROUNDS):
            _measure(few, services, Path(name), of_few, FEW)
            seconds.append(_measure(many, services, Path(name), of_many, MANY))
    samples = [more - less for more, less in zip(many.samples, few.samples, strict=True)]
    return Result(
        "spark_driver",
        f"MiB resident at the peak, Python and JVM together, {MANY:,} segments minus {FEW:,}",
        statistics.median(samples),
        samples,
        many,
        few,
        {
            "partitions": PARTITIONS,
            "spark": MASTER,
            "driver_memory": "1g",
            "rounds": ROUNDS,
            f"plan and report of {MANY:,} segments, seconds": seconds,
        },
    )


def _expired(services: Deployment, name: str, topics: int, segments: int) -> list[str]:
    """Store the rows of topics all of whose segments are expired; return the topics' names."""
    names = [f"{name}-{number}" for number in range(topics)]
    partitions = PARTITIONS // topics
    for topic in names:
        made = make_segments(topic, partitions, segments // topics // partitions)
        store_rows(services.stack.credentials.database_url, made)
        settings = {"retention.ms": "1", "sediment.retention.owner": "sweep"}
        services.rlmm.put_topic_config(made.topic_id, settings, now=True)
    return names


def _measure(
    side: Side, services: Deployment, directory: Path, topics: list[str], segments: int
) -> float:
    """Plan by a command of its own, and add the peaks of its Python and its JVM.

    Returns the seconds from the start of the plan to the end of the report.
    """
    endpoints, report = services.stack.endpoints, directory / "report.json"
    argv = [sys.executable, "-m", "spark_jobs.main", "retention", "--engine", "spark"]
    argv += ["--rsm", endpoints.rsm, "--rlmm", endpoints.rlmm, "--master", MASTER]
    argv += [text for topic in topics for text in ("--topic", topic)]
    argv += ["--max-segments", str(segments), "--report", str(report)]
    peaks: dict[str, int] = {}
    with subprocess.Popen(argv, env=own_environment({"SEDIMENT_PLAINTEXT": "true"})) as process:
        while process.poll() is None:
            for name, pid in _driver(process.pid):
                with suppress(OSError, StopIteration):  # It has just ended.
                    peaks[name] = max(peaks.get(name, 0), peak_rss_bytes(pid))
            Event().wait(_POLL_S)
    if process.returncode != 0:
        raise RuntimeError(f"the sweep ended with {process.returncode}")
    document = json.loads(report.read_text())
    if document["totals"]["planned_segments"] != segments:
        raise RuntimeError(f"not all of {segments} segments were planned: see {report}")
    for name, size in peaks.items():
        side.peak_rss_bytes[name] = max(size, side.peak_rss_bytes.get(name, 0))
    side.samples.append(sum(peaks.values()) / MIB)
    took_ms: int = document["finished_at_ms"] - document["started_at_ms"]
    return took_ms / 1_000


def _driver(pid: int) -> list[tuple[str, int]]:
    """Return the processes of a driver: its Python, and its JVM if that runs already."""
    found = [("python", pid)]
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children():
            if child.name() == "java":
                found.append(("jvm", child.pid))
    return found
