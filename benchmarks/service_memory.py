"""Measure service_memory: each service's peak memory while eight partitions ship large segments."""

import tempfile
from pathlib import Path
from threading import Event

from benchmarks.deployment import deployed
from benchmarks.measure import MIB, Result, Side, peak_rss_bytes
from benchmarks.store import STORE
from services.api.remote_log_manager import all_descriptions
from tests.harness.synthetic_log import make_log_dir

PARTITIONS = 8
SEGMENT_BYTES = 256 * MIB


def run() -> Result:
    with tempfile.TemporaryDirectory(prefix="sediment-bench-") as name:
        log_dir = Path(name) / "log"
        make_log_dir(log_dir, PARTITIONS, 1, SEGMENT_BYTES)
        with deployed([log_dir]) as services:
            while any(d.lag_segments for d in all_descriptions(services.rlm)):
                Event().wait(0.5)
            peaks = {name: peak_rss_bytes(pid) for name, pid in services.pids.items()}
    largest = max(peaks.values()) / MIB
    return Result(
        "service_memory",
        "MiB resident, the largest of the three services at its peak",
        largest,
        [largest],
        Side("the largest", [largest], [], peaks),
        Side("nothing"),
        {"partitions": PARTITIONS, "segment_bytes": SEGMENT_BYTES, "store": STORE},
    )
