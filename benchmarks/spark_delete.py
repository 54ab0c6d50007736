"""Measure spark_delete: a retention sweep over many small segments, against a bare multi-delete."""

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

from minio import Minio
from minio.deleteobjects import DeleteObject
from pyspark.sql import SparkSession

from benchmarks.deployment import Deployment, deployed
from benchmarks.many_segments import make_segments, store_objects, store_rows
from benchmarks.measure import Result, ratio
from benchmarks.store import STORE
from spark_jobs.launch import spark_session
from spark_jobs.options import SweepOptions
from spark_jobs.retention_sweep import Config
from spark_jobs.retention_sweep import run as run_sweep
from spark_jobs.sweep import SweepRun

PARTITIONS = 20
SEGMENTS = 10_000
ROUNDS = 3  # a round takes more than a minute with the creation of its objects
CONCURRENCY = 2
_KEYS_PER_REQUEST = 1000


def run() -> Result:
    master = f"local[{CONCURRENCY}]"
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sediment-bench-")))
        # First, because gRPC does not support the fork that starts Java.
        spark = stack.enter_context(
            spark_session("spark_delete", directory, directory / "spark.log", master)
        )
        services = stack.enter_context(deployed())
        return ratio(
            "spark_delete",
            ROUNDS,
            ("retention sweep, --apply, segments/s", lambda: _swept(spark, services, directory)),
            (
                f"bare multi-delete, {CONCURRENCY} threads, segments/s",
                lambda: _multi_deleted(services),
            ),
            services.pids,
            {
                "segments": SEGMENTS,
                "partitions": PARTITIONS,
                "objects_per_segment": 3,
                "spark": master,
                "durability": services.durability(),
                "store": STORE,
            },
        )


def _swept(spark: SparkSession, services: Deployment, directory: Path) -> float:
    config = Config(_options(services, _expired_topic(services), directory))
    plan_id = uuid4().hex
    where = directory / plan_id
    where.mkdir()
    this = SweepRun("retention_sweep", plan_id, where, lambda _: None)
    started = time.perf_counter()
    report = run_sweep(spark, this, config)
    seconds = time.perf_counter() - started
    if report.totals.counts["deleted_segments"] != SEGMENTS:
        raise RuntimeError(f"not all deleted: {report.totals}")
    return SEGMENTS / seconds


def _multi_deleted(services: Deployment) -> float:
    client, keys = services.s3_client(), make_segments("bare", 1, SEGMENTS).keys()
    store_objects(client, services.bucket, keys)
    started = time.perf_counter()
    _multi_delete(client, services.bucket, keys)
    return SEGMENTS / (time.perf_counter() - started)


def _expired_topic(services: Deployment) -> str:
    """Create a topic all of whose segments are expired."""
    topic = f"swept-{uuid4().hex}"
    many = make_segments(topic, PARTITIONS, SEGMENTS // PARTITIONS)
    store_rows(services.stack.credentials.database_url, many)
    store_objects(services.s3_client(), services.bucket, many.keys())
    settings = {"retention.ms": "1", "sediment.retention.owner": "sweep"}
    services.rlmm.put_topic_config(many.topic_id, settings)
    return topic


def _options(services: Deployment, topic: str, directory: Path) -> SweepOptions:
    endpoints = services.stack.endpoints
    return SweepOptions(
        rsm=endpoints.rsm,
        rlmm=endpoints.rlmm,
        topics=(topic,),
        apply=True,
        max_segments=SEGMENTS,
        work_dir=directory,
    )


def _multi_delete(client: Minio, bucket: str, keys: list[str]) -> None:
    def delete(batch: list[str]) -> None:
        for error in client.remove_objects(bucket, [DeleteObject(key) for key in batch]):
            raise RuntimeError(f"cannot delete: {error}")

    batches = [keys[i : i + _KEYS_PER_REQUEST] for i in range(0, len(keys), _KEYS_PER_REQUEST)]
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        list(pool.map(delete, batches))
