"""Measure broker_rebuild: a replica whose disk was wiped, until it is in sync again.

Two clusters of two brokers, alike but for the topic: in one it is tiered. The follower's
replication is throttled, as a network between brokers is; a restart with the replica kept is the
control.
"""

import os
import shutil
import statistics
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track

from benchmarks.brokers import (
    BROKER,
    LOCAL,
    STREAMED,
    Case,
    bench_directory,
    running_stack,
    wait_until_gone,
    write,
)
from benchmarks.measure import MIB, QUICK, Result, Row, Side, print_table
from benchmarks.store import STORE
from demos.kafka_broker import KafkaBroker, plugin_settings
from demos.kafka_client import Cluster
from tests.harness.kafka_broker import plugin_jar
from tests.harness.kafka_cluster import ClusterAdmin, KafkaCluster

ROUNDS = 1 if QUICK else 3
RATE_MIB_PER_S = 4 if QUICK else 16
LEADER, FOLLOWER = 1, 2
DATA = Case("16 KiB batches", "rebuilt", 1, 2 if QUICK else 16, 1_000, 16, segment_bytes=16 * MIB)
TOPICS = {LOCAL: "not tiered", STREAMED: "tiered"}
SETTINGS = {
    **BROKER,
    "default.replication.factor": "2",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "2",
}


@dataclass(frozen=True)
class Rebuild:
    """One start of the follower.

    Attributes:
        in_sync_s: from the start of its process until it is in sync.
        moved_bytes: the bytes by which its replica's log grew meanwhile.
    """

    in_sync_s: float
    moved_bytes: int


Rebuilds = Mapping[tuple[str, bool], list[Rebuild]]
"""The starts of each topic, with a wiped replica and with a kept one, round by round."""


def run() -> Result:
    rebuilds: dict[tuple[str, bool], list[Rebuild]] = {}
    with ExitStack() as opened:
        directory = opened.enter_context(bench_directory())
        stack = opened.enter_context(running_stack(directory))
        plugin = plugin_settings(plugin_jar(), stack.endpoints.rsm, stack.endpoints.rlmm)
        settings = [{**SETTINGS, **plugin}] * 2
        clusters = {
            side: opened.enter_context(KafkaCluster(directory / side, settings)) for side in TOPICS
        }
        for side, cluster in clusters.items():
            _fill(cluster, side)
        for _ in track(range(ROUNDS), description="broker_rebuild", console=Console(stderr=True)):
            for is_wiped in (True, False):
                for side, cluster in clusters.items():
                    rebuilt = _rebuild(cluster, side, is_wiped)
                    rebuilds.setdefault((side, is_wiped), []).append(rebuilt)
    _print(rebuilds)
    return _result(rebuilds)


def _fill(cluster: KafkaCluster, side: str) -> None:
    """Write the records, wait until only active segments are local, then throttle the follower."""
    client, topic = Cluster(cluster.bootstrap_servers), DATA.topic(side)
    admin = ClusterAdmin(cluster.bootstrap_servers)
    admin.create(topic.name, [(LEADER, FOLLOWER)], topic.configs())
    write(client, DATA, topic.name, os.urandom(DATA.record_bytes))
    admin.wait_until_in_sync(topic.name, 0, len(cluster.brokers))
    if side == STREAMED:
        for broker in cluster.brokers:
            wait_until_gone(broker, topic)
    client.configure(topic.name, follower_replication_throttled_replicas="*")
    rate = str(RATE_MIB_PER_S * MIB)
    client.configure_broker(FOLLOWER, follower_replication_throttled_rate=rate)


def _rebuild(cluster: KafkaCluster, side: str, is_wiped: bool) -> Rebuild:
    topic, follower = DATA.topic(side).name, cluster.broker(FOLLOWER)
    follower.stop()
    if is_wiped:
        for log_dir in follower.log_dirs:
            shutil.rmtree(log_dir)
    before = _log_bytes(follower, topic)
    began = time.perf_counter()
    follower.start()
    leader = cluster.broker(LEADER).bootstrap_servers
    ClusterAdmin(leader).wait_until_in_sync(topic, 0, len(cluster.brokers))
    in_sync_s = time.perf_counter() - began
    return Rebuild(in_sync_s, _log_bytes(follower, topic) - before)


def _log_bytes(broker: KafkaBroker, topic: str) -> int:
    folder: Path = broker.log_dir / f"{topic}-0"
    return sum(path.stat().st_size for path in folder.glob("*.log"))


def _print(rebuilds: Rebuilds) -> None:
    rows: list[Row] = [
        (
            f"{name}, replica {'wiped' if is_wiped else 'kept'}",
            statistics.median(each.in_sync_s for each in rebuilds[side, is_wiped]),
            statistics.median(each.moved_bytes for each in rebuilds[side, is_wiped]) / MIB,
        )
        for side, name in TOPICS.items()
        for is_wiped in (True, False)
    ]
    title = f"broker_rebuild: follower throttled to {RATE_MIB_PER_S} MiB/s"
    print_table(title, ("", "process start to in sync, s", "moved, MiB"), rows)


def _result(rebuilds: Rebuilds) -> Result:
    top, bottom = (
        Side(
            f"{TOPICS[side]}, replica wiped, s",
            [each.in_sync_s for each in rebuilds[side, True]],
        )
        for side in (LOCAL, STREAMED)
    )
    samples = [a / b for a, b in zip(top.samples, bottom.samples, strict=True)]
    conditions: dict[str, object] = {
        "rounds": ROUNDS,
        "cores": os.cpu_count(),
        "store": STORE,
        "partition, MiB": DATA.segments * DATA.segment_bytes // MIB,
        "throttled to, MiB/s": RATE_MIB_PER_S,
        **{
            f"{TOPICS[side]}, replica {'wiped' if is_wiped else 'kept'}": {
                "in sync after, s": [round(each.in_sync_s, 2) for each in found],
                "moved, MiB": [round(each.moved_bytes / MIB, 2) for each in found],
            }
            for (side, is_wiped), found in rebuilds.items()
        },
        "note": "the ratio is that of this size and rate: it grows with the partition",
    }
    median = statistics.median(samples)
    return Result("broker_rebuild", "ratio", median, samples, top, bottom, conditions)
