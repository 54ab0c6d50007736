"""Measure broker_restart: a broker's start until a consumer has a record from the tier.

The broker leads a partition that is read, and one with none, some or many segments of metadata:
rows of RLMM, or records of Kafka's topic of metadata, written by Kafka's own classes.
"""

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psycopg

from benchmarks.brokers import (
    DEFAULT_INTERVAL,
    LTS,
    STREAMED,
    Brokers,
    Case,
    produce,
    running_brokers,
    wait_until_gone,
)
from benchmarks.java_client import Consumer, JavaClient, heap_after_gc_mib
from benchmarks.many_segments import make_segments, store_rows
from benchmarks.measure import MIB, QUICK, Result, Row, Side, counted_rounds, print_table
from benchmarks.rlmm.database import plain_url
from benchmarks.store import STORE
from demos.kafka_broker import KafkaBroker
from demos.kafka_client import NOW, Cluster, Record, Topic, send_batch
from services.api.ids import TopicIdPartition
from services.rlm.kafka_log.log_dir import find_partitions
from tests.harness.eventually import eventually

ROUNDS = 1 if QUICK else 5
SEGMENTS = (0, 10_000, 100_000)
TIERS = (LTS, STREAMED)
READ = Case("a record of the tier", "read", 1, 2, 1_000, 16, segment_bytes=MIB)


@dataclass(frozen=True)
class Start:
    """One start of a broker.

    Attributes:
        first_record_s: from the start of the process.
    """

    first_record_s: float
    heap_after_gc_mib: float


Starts = Mapping[tuple[int, str], list[Start]]
"""The starts with so many segments of metadata, on each side, round by round."""


def run() -> Result:
    starts: dict[tuple[int, str], list[Start]] = {}
    with running_brokers(TIERS, DEFAULT_INTERVAL) as brokers, Consumer() as consumer:
        tiers = {tier: brokers.brokers[tier] for tier in TIERS}
        produce(READ, tiers)
        for tier, broker in tiers.items():
            wait_until_gone(broker, READ.topic(tier))
        before = 0
        for segments in SEGMENTS:
            _add_metadata(brokers, f"history-{segments}", segments - before)
            before = segments
            for broker in tiers.values():
                _start(broker, consumer)  # the metadata's first start, with its topic's first task
            title = f"broker_restart, {segments} segments"
            for _ in counted_rounds(title, ROUNDS):
                for tier, broker in tiers.items():
                    starts.setdefault((segments, tier), []).append(_start(broker, consumer))
            _check_kept(brokers, segments)
    _print(starts)
    return _result(starts)


def _start(broker: KafkaBroker, consumer: Consumer) -> Start:
    broker.stop()
    began = time.perf_counter()
    broker.start()
    listening_s = time.perf_counter() - began
    topic = READ.topic(STREAMED).name
    _, first_s, _ = consumer.read(broker.bootstrap_servers, topic, READ.isolation, [1])
    return Start(listening_s + first_s, heap_after_gc_mib(broker.pid))


def _add_metadata(brokers: Brokers, topic: str, segments: int) -> None:
    """Give each broker one more tiered partition, with so many finished segments in the tier."""
    if not segments:
        return
    for tier in TIERS:
        broker = brokers.brokers[tier]
        cluster = Cluster(broker.bootstrap_servers)
        history = Topic(topic, 1, MIB)
        cluster.create(history)
        # Without a record of the segments' leader epoch, the broker would delete them all.
        send_batch(cluster.producer(), history, 0, [Record(None, b"first", NOW)])
        partition = _partition(broker, topic)
        if tier == LTS:
            with JavaClient("SegmentMetadata.java") as writer:
                writer.ask(broker.bootstrap_servers, partition.topic_id, topic, segments)
        else:
            url = brokers.stack.credentials.database_url
            store_rows(url, make_segments(topic, 1, segments, partition.topic_id))
        # Not before: the broker would take the partition to have nothing in the tier.
        cluster.configure(topic, remote_storage_enable="true")


def _partition(broker: KafkaBroker, topic: str) -> TopicIdPartition:
    def found() -> list[TopicIdPartition]:
        partitions = find_partitions(broker.log_dirs).partitions
        return [each for each in partitions if each.topic == topic]

    return eventually(found)[0]


def _check_kept(brokers: Brokers, segments: int) -> None:
    """Check that the broker with the plugin has deleted none of the segments that were added."""
    with psycopg.connect(plain_url(brokers.stack.credentials.database_url)) as connection:
        query = (
            "SELECT count(*) FROM segments JOIN topics USING (topic_id)"
            " WHERE name LIKE 'history-%' AND state = 'COPY_SEGMENT_FINISHED'"
        )
        (kept,) = connection.execute(query).fetchone() or (0,)
    if kept != segments:
        raise RuntimeError(f"the broker has {kept} of {segments} segments; it deleted the others")


def _print(starts: Starts) -> None:
    def medians(segments: int) -> Sequence[float]:
        found = [starts[segments, tier] for tier in TIERS]
        return [
            *(statistics.median(start.first_record_s for start in each) for each in found),
            *(statistics.median(start.heap_after_gc_mib for start in each) for each in found),
        ]

    rows: list[Row] = [(f"{segments} segments", *medians(segments)) for segments in SEGMENTS]
    columns = [f"{what}, {tier}" for what in ("start, s", "heap, MiB") for tier in _NAMES.values()]
    title = "broker_restart: process start to first record of the tier; heap after GC"
    print_table(title, ("", *columns), rows)


_NAMES = {LTS: "topic of metadata", STREAMED: "RLMM"}


def _result(starts: Starts) -> Result:
    """Return the ratio with the most segments."""
    most = SEGMENTS[-1]
    top, bottom = (
        Side(f"{_NAMES[tier]}, s", [start.first_record_s for start in starts[most, tier]])
        for tier in (STREAMED, LTS)
    )
    samples = [a / b for a, b in zip(top.samples, bottom.samples, strict=True)]
    conditions: dict[str, object] = {
        "rounds": ROUNDS,
        "cores": os.cpu_count(),
        "store": STORE,
        **{
            f"{segments} segments, {_NAMES[tier]}": {
                "start to first record, s": [round(start.first_record_s, 2) for start in each],
                "heap after GC, MiB": [round(start.heap_after_gc_mib, 1) for start in each],
            }
            for (segments, tier), each in starts.items()
        },
    }
    median = statistics.median(samples)
    return Result("broker_restart", "ratio", median, samples, top, bottom, conditions)
