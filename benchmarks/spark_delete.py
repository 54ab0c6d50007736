"""Measure spark_delete: a retention sweep over many small segments, against a bare multi-delete."""

import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.bulk_deletes import NO_PACE, PARTITIONS, SEGMENTS, multi_deleted, swept
from benchmarks.deployment import deployed
from benchmarks.measure import Result, ratio
from benchmarks.store import STORE
from spark_jobs.spark_session import SparkSettings, spark_session
from spark_jobs.sweeps.spark_engine import SparkEngine

# A round takes more than a minute with the creation of its objects, one of 100,000 segments 15.
ROUNDS = 3 if SEGMENTS <= 10_000 else 1
CONCURRENCY = 2


def run() -> Result:
    master = f"local[{CONCURRENCY}]"
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sediment-bench-")))
        # First, because gRPC does not support the fork that starts Java.
        spark = stack.enter_context(
            spark_session("spark_delete", directory, directory / "spark.log", SparkSettings(master))
        )
        services = stack.enter_context(deployed(settings=NO_PACE))
        return ratio(
            "spark_delete",
            ROUNDS,
            (
                "retention sweep, --apply, segments/s",
                lambda: swept(
                    lambda where: SparkEngine(spark, f"file:{where}"), services, directory
                ),
            ),
            (
                f"bare multi-delete, {CONCURRENCY} threads, segments/s",
                lambda: multi_deleted(services, CONCURRENCY),
            ),
            services.pids,
            {
                "segments": SEGMENTS,
                "partitions": PARTITIONS,
                "objects_per_segment": 3,
                "spark": master,
                "rsm": NO_PACE,
                "durability": services.durability(),
                "store": STORE,
            },
        )
