"""Measure spark_records: MiB of log per CPU second of the records source in Spark, counting rows,
against the record iterator behind `sediment fetch`, printing nothing, of the same partition.

Spark's own source, of the same records on a broker's disk, is measured beside them and printed. The
CPU is that of the clients: Spark's JVM and Python workers, and this process.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from struct import pack
from typing import Any
from uuid import uuid4

import psutil
from crc32c import crc32c
from pyspark.sql import SparkSession

from benchmarks.deployment import Deployment, deployed
from benchmarks.measure import (
    MIB,
    QUICK,
    ROUNDS,
    Result,
    Side,
    print_table,
    ratio,
    tree_cpu_seconds,
)
from demos.kafka_broker import KafkaBroker
from demos.kafka_client import Cluster, Topic
from services.api.ids import TopicIdPartition, uuid_to_text
from services.client.records import decoded
from services.rlm.copy.ship import ShipOutcome, ship
from spark_jobs.spark_session import SparkSettings, spark_session
from tests.harness.jars import ensure_kafka_jars, ensure_spark_kafka_jars

SEGMENTS = 2 if QUICK else 8
SEGMENT_BYTES = 16 * MIB
VALUE_BYTES = 500
RECORDS_PER_BATCH = 30
CONCURRENCY = 2
_WRITING_TIMEOUT_S = 300.0
_SNAPSHOT_BODY = pack(">i", 0)
_SNAPSHOT = pack(">hI", 1, crc32c(_SNAPSHOT_BODY)) + _SNAPSHOT_BODY


def run() -> Result:
    master = f"local[{CONCURRENCY}]"
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sediment-bench-")))
        jars = ",".join(map(str, sorted(ensure_spark_kafka_jars().iterdir())))
        settings = SparkSettings(master, conf=(("spark.jars", jars),))
        # First, because gRPC does not support the fork that starts Java.
        spark = stack.enter_context(
            spark_session("spark_records", directory, directory / "spark.log", settings)
        )
        [java] = [child.pid for child in psutil.Process().children() if child.name() == "java"]
        broker = stack.enter_context(KafkaBroker(directory / "broker", ensure_kafka_jars()))
        services = stack.enter_context(deployed())
        tp, size_bytes, records = _shipped(services, directory / "log")
        _produce(broker, tp.topic, records)
        of_broker = Side("Spark's Kafka source, MiB of log per CPU second")

        def spark_cpu_seconds() -> float:
            return _own_cpu_seconds() + tree_cpu_seconds(java)

        def in_spark() -> float:
            return _per_cpu_second(
                size_bytes,
                records,
                lambda: _count(spark, services, tp),
                spark_cpu_seconds,
            )

        def from_broker() -> None:
            of_broker.samples.append(
                _per_cpu_second(
                    size_bytes,
                    records,
                    lambda: _count_in_broker(spark, broker, tp.topic),
                    spark_cpu_seconds,
                )
            )

        def iterated() -> float:
            return _per_cpu_second(
                size_bytes,
                records,
                lambda: sum(1 for _ in decoded(services.rlm, tp, 0)),
                _own_cpu_seconds,
            )

        in_spark()  # the Java machine compiles often used code
        from_broker()
        of_broker.samples.clear()
        result = ratio(
            "spark_records",
            ROUNDS,
            ("records source, MiB of log per CPU second", in_spark),
            ("record iterator of `sediment fetch`, MiB of log per CPU second", iterated),
            services.pids,
            {
                "log_bytes": size_bytes,
                "records": records,
                "value_bytes": VALUE_BYTES,
                "codec": "none",
                "spark": master,
            },
            beside=from_broker,
        )
        figures = sorted(of_broker.samples)
        row = (statistics.median(figures), figures[0], figures[-1])
        print_table(of_broker.what, ("median", "least", "most"), [row])
        result.conditions["spark_kafka_source"] = of_broker.samples
        return result


def _produce(broker: KafkaBroker, topic: str, records: int) -> None:
    """Write as many records with keys and values as those of the log, in batches of its size."""
    cluster = Cluster(broker.bootstrap_servers)
    cluster.create(Topic(topic, 1, SEGMENT_BYTES))
    batches: dict[str, Any] = {
        "batch.num.messages": RECORDS_PER_BATCH,
        "queue.buffering.max.messages": records,
    }
    producer = cluster.producer(**batches)
    for offset in range(records):
        producer.produce(topic, bytes(VALUE_BYTES), pack(">q", offset), partition=0)
    if left := producer.flush(_WRITING_TIMEOUT_S):
        raise RuntimeError(f"{left} records were not written in {_WRITING_TIMEOUT_S:.0f} s")


def _count_in_broker(spark: SparkSession, broker: KafkaBroker, topic: str) -> int:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    options = {"subscribe": topic, "minPartitions": str(CONCURRENCY)}
    return reader.options(**options).load().count()


def _count(spark: SparkSession, services: Deployment, tp: TopicIdPartition) -> int:
    endpoints = services.stack.endpoints
    reader = spark.read.format("sediment-records").option("rsm", endpoints.rsm)
    return reader.option("rlmm", endpoints.rlmm).option("subscribe", tp.topic).load().count()


def _per_cpu_second(
    size_bytes: int, records: int, work: Callable[[], int], cpu_seconds: Callable[[], float]
) -> float:
    before = cpu_seconds()
    found = work()
    if found != records:
        raise RuntimeError(f"{found} records were read, not {records}")
    return size_bytes / MIB / (cpu_seconds() - before)


def _own_cpu_seconds() -> float:
    return time.process_time()


def _shipped(services: Deployment, log_dir: Path) -> tuple[TopicIdPartition, int, int]:
    """Write a log of real records and ship it; return its name, bytes and number of records."""
    tp = TopicIdPartition(uuid4(), "records", 0)
    folder = log_dir / "records-0"
    folder.mkdir(parents=True)
    (log_dir / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=bench\n")
    (folder / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    metadata = f"version: 0\ntopic_id: {uuid_to_text(tp.topic_id)}"
    (folder / "partition.metadata").write_text(metadata)
    offset = size_bytes = 0
    for _ in range(SEGMENTS):
        base, position, index = offset, 0, bytearray()
        with (folder / f"{base:020}.log").open("wb") as log:
            while position < SEGMENT_BYTES:
                batch = _batch(offset)
                if position:
                    index += pack(">ii", offset + RECORDS_PER_BATCH - 1 - base, position)
                log.write(batch)
                position += len(batch)
                offset += RECORDS_PER_BATCH
        size_bytes += position
        (folder / f"{base:020}.index").write_bytes(index)
        last = pack(">qi", 1_000, offset - 1 - base)
        (folder / f"{base:020}.timeindex").write_bytes(last)
        (folder / f"{offset:020}.snapshot").write_bytes(_SNAPSHOT)
    (folder / f"{offset:020}.log").touch()
    report = ship([log_dir], services.rsm, services.rlmm)
    if report.outcome is not ShipOutcome.DONE:
        raise RuntimeError(f"not everything was shipped: {report}")
    return tp, size_bytes, offset


def _batch(base_offset: int) -> bytes:
    """Build a batch of records with a key of 8 bytes and a value, not compressed."""
    value = bytes(VALUE_BYTES)
    records = b"".join(
        _with_length(
            b"\0\0"
            + _varint(delta)
            + _with_length(pack(">q", base_offset + delta))
            + _with_length(value)
            + b"\0"
        )
        for delta in range(RECORDS_PER_BATCH)
    )
    last = RECORDS_PER_BATCH - 1
    covered = pack(">hiqqqhii", 0, last, 1_000, 1_000, -1, -1, -1, RECORDS_PER_BATCH) + records
    after_length = pack(">ibI", 0, 2, crc32c(covered)) + covered
    return pack(">qi", base_offset, len(after_length)) + after_length


def _with_length(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _varint(number: int) -> bytes:
    rest, out = number << 1, bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])
