"""Measure plugin_catch_up: a consumer reads the tier through the plugin, against the broker's disk.

The records of both sides are the same. Needs `make plugin`, Java and Maven.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from confluent_kafka import TopicPartition

from benchmarks.measure import MIB, Result, mib_per_s, ratio
from benchmarks.store import STORE, s3_server
from demos.kafka_broker import KafkaBroker, plugin_settings
from demos.kafka_client import NOW, Cluster, Record, Topic, send_batch
from services.local.stack import EmbeddedStack
from tests.harness.kafka_jars import ensure_kafka_jars
from tests.harness.kafka_plugin import plugin_jar

ROUNDS = 9
SEGMENT_BYTES = 64 * MIB
SEGMENTS = 8
RECORD_BYTES = 16 * 1024
RECORDS_IN_BATCH = 60
LEAVING_TIMEOUT_S = 300.0
# As for a real broker, except for the small heap.
JVM_OPTIONS = ("-Xms512m", "-Xmx512m", "-XX:+UseG1GC")
BROKER = {"remote.log.manager.task.interval.ms": "500", "log.retention.check.interval.ms": "500"}
LOCAL = Topic("local", 1, SEGMENT_BYTES)
TIERED = Topic(
    "tiered", 1, SEGMENT_BYTES, {"remote.storage.enable": "true", "local.retention.bytes": "1"}
)


@dataclass(frozen=True)
class _Reader:
    """Reads both topics up to the last offset that only the tier has."""

    cluster: Cluster
    end_offset: int

    def read(self, topic: Topic) -> float:
        """Return MiB/s of records."""
        return mib_per_s(self.end_offset * RECORD_BYTES, lambda: self._read(topic))

    def _read(self, topic: Topic) -> None:
        settings = {"enable.partition.eof": False}
        with closing(self.cluster.consumer("read_uncommitted", **settings)) as consumer:
            consumer.assign([TopicPartition(topic.name, 0, 0)])
            position = 0
            while position < self.end_offset:
                for message in consumer.consume(min(1000, self.end_offset - position), timeout=1):
                    assert message.error() is None, message.error()
                    offset = message.offset()
                    assert offset == position, f"{topic.name}: {offset} follows {position - 1}"
                    position += 1


def run() -> Result:
    with _broker_with_tier() as (stack, broker):
        cluster = Cluster(broker.bootstrap_servers)
        cluster.create(LOCAL, TIERED)
        _produce(cluster)
        reader = _Reader(cluster, _wait_until_gone(broker))
        reader.read(TIERED), reader.read(LOCAL)  # indexes, code and pages are warm for both
        pids = {**stack.endpoints.pids, "kafka": broker.pid}
        return ratio(
            "plugin_catch_up",
            ROUNDS,
            ("consumer, from the tier, MiB/s", lambda: reader.read(TIERED)),
            ("consumer, from the broker's disk (page cache), MiB/s", lambda: reader.read(LOCAL)),
            pids,
            {
                "bytes_a_round": reader.end_offset * RECORD_BYTES,
                "segment_bytes": SEGMENT_BYTES,
                "record_bytes": RECORD_BYTES,
                "consumer": "librdkafka, defaults: 1 MiB a partition and fetch",
                "store": STORE,
                "partitions": 1,
            },
        )


@contextmanager
def _broker_with_tier() -> Iterator[tuple[EmbeddedStack, KafkaBroker]]:
    with tempfile.TemporaryDirectory(prefix="sediment-bench-") as name:
        directory = Path(name)
        directory.chmod(0o711)
        s3 = s3_server(directory / "s3")
        with EmbeddedStack(directory / "stack", with_rlm=False, s3=s3) as stack:
            endpoints = stack.endpoints
            settings = {**BROKER, **plugin_settings(plugin_jar(), endpoints.rsm, endpoints.rlmm)}
            jars = ensure_kafka_jars()
            with KafkaBroker(
                directory / "kafka", jars, settings, jvm_options=JVM_OPTIONS
            ) as broker:
                yield stack, broker


def _produce(cluster: Cluster) -> None:
    """Write the same records into both topics.

    A broker rolls an active segment that local retention has expired, so that in the end all of
    them leave the disk.
    """
    batches = SEGMENTS * SEGMENT_BYTES // (RECORD_BYTES * RECORDS_IN_BATCH)
    large: dict[str, Any] = {"batch.size": 2 * MIB, "message.max.bytes": 2 * MIB}
    producers = [(topic, cluster.producer(**large)) for topic in (LOCAL, TIERED)]
    for _ in range(batches):
        records = [Record(None, os.urandom(RECORD_BYTES), NOW) for _ in range(RECORDS_IN_BATCH)]
        for topic, producer in producers:
            send_batch(producer, topic, 0, records)


def _wait_until_gone(broker: KafkaBroker) -> int:
    """Wait until so many segments have left the disk; return the first offset that is still
    there.
    """
    folder = broker.log_dir / f"{TIERED.name}-0"
    deadline = time.monotonic() + LEAVING_TIMEOUT_S
    while len(local := sorted(folder.glob("*.log"))) > 1:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(local)} segments are still in {folder}")
        Event().wait(0.2)
    return int(local[0].stem)
