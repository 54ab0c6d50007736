"""Measure spark_scan: segments read into a DataFrame, against COPY of the same rows as raw text."""

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import psycopg
from pyspark.sql import SparkSession

from benchmarks.deployment import Deployment, deployed
from benchmarks.many_segments import make_segments, store_rows
from benchmarks.measure import Result, ratio
from spark_jobs.connections import Services
from spark_jobs.segments_source import remote_log_segments
from spark_jobs.spark_session import SparkSettings, spark_session

PARTITIONS = 200
SEGMENTS = 200_000
ROUNDS = 9
CONCURRENCY = 2
_COPY = """COPY (
    SELECT s.topic_id, t.name, s.partition, p.revision, p.delete_state, s.segment_id,
        s.start_offset, s.end_offset, s.max_timestamp_ms, s.broker_id, s.broker_leader_epoch,
        s.event_timestamp_ms, s.leader_epochs, s.epoch_start_offsets, s.segment_size_in_bytes,
        s.custom_metadata, s.state, s.txn_idx_empty, s.plan_id
    FROM segments s JOIN partitions p USING (topic_id, partition) JOIN topics t USING (topic_id)
    WHERE s.state <> 'DELETE_SEGMENT_FINISHED') TO STDOUT"""


def run() -> Result:
    master = f"local[{CONCURRENCY}]"
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sediment-bench-")))
        # First, because gRPC does not support the fork that starts Java.
        spark = stack.enter_context(
            spark_session("spark_scan", directory, directory / "spark.log", SparkSettings(master))
        )
        services = stack.enter_context(deployed())
        url = services.stack.credentials.database_url
        store_rows(url, make_segments("scanned", PARTITIONS, SEGMENTS // PARTITIONS))
        _scanned(spark, services)  # the Java machine compiles often used code
        return ratio(
            "spark_scan",
            ROUNDS,
            ("into a DataFrame, segments/s", lambda: _scanned(spark, services)),
            ("COPY as text, segments/s", lambda: _copied(url)),
            services.pids,
            {
                "segments": SEGMENTS,
                "partitions": PARTITIONS,
                "spark": master,
                "durability": services.durability(),
            },
        )


def _scanned(spark: SparkSession, services: Deployment) -> float:
    started = time.perf_counter()
    frame = remote_log_segments(spark, _services(services))
    frame.write.format("noop").mode("overwrite").save()
    return SEGMENTS / (time.perf_counter() - started)


def _services(services: Deployment) -> Services:
    endpoints = services.stack.endpoints
    return Services(rlmm=endpoints.rlmm, rsm=endpoints.rsm, retry_for_s=30.0)


def _copied(database_url: str) -> float:
    with psycopg.connect(database_url.replace("+psycopg", "")) as connection:
        started = time.perf_counter()
        with connection.cursor().copy(_COPY) as copy:
            read_bytes = sum(len(block) for block in copy)
        seconds = time.perf_counter() - started
    if not read_bytes:
        raise RuntimeError("nothing was read")
    return SEGMENTS / seconds
