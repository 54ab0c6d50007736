"""Measure spark_foreground: a look-up's time while a sweep deletes, against an idle tier.

The sweep runs on Spark at its default rate; its processes have the lowest priority.
"""

import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from benchmarks.deployment import Deployment, deployed
from benchmarks.many_segments import (
    OFFSETS_PER_SEGMENT,
    ManySegments,
    make_segments,
    store_objects,
    store_rows,
)
from benchmarks.measure import QUICK, Result, ratio
from benchmarks.store import STORE
from services.local.stack import own_environment
from spark_jobs.options import OPTIONS

PARTITIONS, SEGMENTS = 200, 100_000
"""Of the topic that is looked up."""

SWEPT_PARTITIONS, SWEPT_SEGMENTS = 20, 3_000 if QUICK else 10_000
IDLE_S = 10.0
ROUNDS = 1 if QUICK else 3  # a round takes more than a minute with the creation of its objects
MASTER = "local-cluster[2,1,1024]"
NICENESS = 19
_US = 1e6


def run() -> Result:
    with tempfile.TemporaryDirectory(prefix="sediment-bench-") as name, deployed() as services:
        looked_up = make_segments("looked-up", PARTITIONS, SEGMENTS // PARTITIONS)
        store_rows(services.stack.credentials.database_url, looked_up)
        lookups = Lookups(services, looked_up)
        lookups.run_until(_after(IDLE_S))  # to be warm
        p99_us: dict[str, list[float]] = {"during a sweep": [], "idle": []}

        def p50_us(side: str, times_s: list[float]) -> float:
            p99_us[side].append(statistics.quantiles(times_s, n=100)[98] * _US)
            return statistics.median(times_s) * _US

        result = ratio(
            "spark_foreground",
            ROUNDS,
            (
                "look-up during a sweep, p50, us",
                lambda: p50_us("during a sweep", _during_a_sweep(services, lookups, Path(name))),
            ),
            (
                "look-up, idle, p50, us",
                lambda: p50_us("idle", lookups.run_until(_after(IDLE_S))),
            ),
            services.pids,
            {
                "segments": SEGMENTS,
                "partitions": PARTITIONS,
                "swept_segments": SWEPT_SEGMENTS,
                "segments_per_s": OPTIONS["segments_per_s"].default,
                "spark": MASTER,
                "niceness of the sweep": NICENESS,
                "durability": services.durability(),
                "store": STORE,
            },
            services.pids,
        )
    for side, values in p99_us.items():
        result.conditions[f"p99 {side}, us"] = round(statistics.median(values))
    return result


class Lookups:
    """One client that looks up one segment after another, uniformly over all of them."""

    def __init__(self, services: Deployment, looked_up: ManySegments) -> None:
        self._rlmm = services.rlmm
        self._segments = looked_up.segments
        self._random = random.Random(0)

    def run_until(self, is_done: Callable[[], bool]) -> list[float]:
        """Look up until `is_done`; return the seconds of each look-up."""
        times_s = []
        while not is_done():
            segment = self._random.choice(self._segments)
            offset = segment.start_offset + self._random.randrange(OFFSETS_PER_SEGMENT)
            started = time.perf_counter()
            found = self._rlmm.remote_log_segment_metadata(segment.topic_id_partition, 0, offset)
            times_s.append(time.perf_counter() - started)
            if found.value is None:
                raise RuntimeError(f"no segment was found: {segment}")
        return times_s


def _after(seconds: float) -> Callable[[], bool]:
    until = time.perf_counter() + seconds
    return lambda: time.perf_counter() >= until


def _during_a_sweep(services: Deployment, lookups: Lookups, directory: Path) -> list[float]:
    """Sweep in processes of their own; return the look-ups from its first mark to its report."""
    topic = f"swept-{uuid4().hex}"
    many = make_segments(topic, SWEPT_PARTITIONS, SWEPT_SEGMENTS // SWEPT_PARTITIONS)
    store_rows(services.stack.credentials.database_url, many)
    store_objects(services.s3_client(), services.bucket, many.keys())
    settings = {"retention.ms": "1", "sediment.retention.owner": "sweep"}
    services.rlmm.put_topic_config(many.topic_id, settings, now=True)
    endpoints = services.stack.endpoints
    argv = ["nice", "-n", str(NICENESS), sys.executable, "-m", "spark_jobs.main", "retention"]
    argv += ["--engine", "spark", "--master", MASTER, "--apply", "--topic", topic]
    argv += ["--rsm", endpoints.rsm, "--rlmm", endpoints.rlmm]
    argv += ["--report", str(directory / "report.json")]
    errors = directory / "errors"
    with (
        errors.open("w") as output,
        subprocess.Popen(
            argv, env=own_environment({"SEDIMENT_PLAINTEXT": "true"}), stderr=output
        ) as process,
    ):
        lookups.run_until(lambda: _has_reached("marking", errors, process))
        times_s = lookups.run_until(lambda: _has_reached("reporting", errors, process))
    if process.returncode != 0:
        raise RuntimeError(f"the sweep ended with {process.returncode}: {errors.read_text()}")
    return times_s


def _has_reached(phase: str, errors: Path, process: "subprocess.Popen[bytes]") -> bool:
    return f": {phase}\n" in errors.read_text() or process.poll() is not None
