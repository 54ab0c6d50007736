"""Measure local_sweep: a retention sweep in one process, against a bare multi-delete."""

import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.bulk_deletes import NO_PACE, PARTITIONS, SEGMENTS, multi_deleted, swept
from benchmarks.deployment import deployed
from benchmarks.measure import QUICK, Result, ratio
from benchmarks.store import STORE
from spark_jobs.sweeps.local_engine import THREADS, LocalEngine

ROUNDS = 1 if QUICK else 5  # a round takes more than a minute with the creation of its objects


def run() -> Result:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sediment-bench-")))
        services = stack.enter_context(deployed(settings=NO_PACE))
        return ratio(
            "local_sweep",
            ROUNDS,
            (
                "retention sweep, --engine local, segments/s",
                partial(swept, LocalEngine, services, directory),
            ),
            (
                f"bare multi-delete, {THREADS} threads, segments/s",
                partial(multi_deleted, services, THREADS),
            ),
            services.pids,
            {
                "segments": SEGMENTS,
                "partitions": PARTITIONS,
                "objects_per_segment": 3,
                "threads": THREADS,
                "rsm": NO_PACE,
                "durability": services.durability(),
                "store": STORE,
            },
        )
