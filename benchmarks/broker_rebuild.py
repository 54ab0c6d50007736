"""Measure broker_rebuild: a replica whose disk was wiped, until it is in sync again.

Two clusters of two brokers, alike but for the topic: in one it is tiered. The partition grows to
three sizes. Nothing is throttled: Kafka's quota lets ten seconds of its rate pass at once, which
would hide the sizes' difference. A restart with the replica kept is the control. All starts
together give a formula of the bytes moved.
"""

import os
import shutil
import statistics
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

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
from benchmarks.measure import MIB, QUICK, Result, Row, Side, counted_rounds, print_table
from benchmarks.store import STORE
from demos.kafka_broker import KafkaBroker, plugin_settings
from demos.kafka_client import Cluster
from tests.harness.kafka_broker import plugin_jar
from tests.harness.kafka_cluster import ClusterAdmin, KafkaCluster

ROUNDS = 1 if QUICK else 2
LEADER, FOLLOWER = 1, 2
DATA = Case("16 KiB batches", "rebuilt", 1, 0, 1_000, 16, segment_bytes=16 * MIB)
SIZES_MIB = (16, 32, 64) if QUICK else (64, 128, 320)
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


Rebuilds = Mapping[tuple[str, int], list[Rebuild]]
"""The starts of each topic at each size, round by round; size 0 is a replica that was kept."""


def run() -> Result:
    rebuilds: dict[tuple[str, int], list[Rebuild]] = {}
    with ExitStack() as opened:
        directory = opened.enter_context(bench_directory())
        stack = opened.enter_context(running_stack(directory))
        plugin = plugin_settings(plugin_jar(), stack.endpoints.rsm, stack.endpoints.rlmm)
        settings = [{**SETTINGS, **plugin}] * 2
        clusters = {
            side: opened.enter_context(KafkaCluster(directory / side, settings)) for side in TOPICS
        }
        for side, cluster in clusters.items():
            _create(cluster, side)
        before_mib = 0
        for size_mib in SIZES_MIB:
            for side, cluster in clusters.items():
                _grow(cluster, side, size_mib - before_mib)
            before_mib = size_mib
            for _ in counted_rounds(f"broker_rebuild, {size_mib} MiB", ROUNDS):
                for side, cluster in clusters.items():
                    rebuilt = _rebuild(cluster, side, is_wiped=True)
                    rebuilds.setdefault((side, size_mib), []).append(rebuilt)
        for _ in counted_rounds("broker_rebuild, nothing wiped", ROUNDS):
            for side, cluster in clusters.items():
                rebuilt = _rebuild(cluster, side, is_wiped=False)
                rebuilds.setdefault((side, 0), []).append(rebuilt)
    _print(rebuilds)
    return _result(rebuilds)


def _create(cluster: KafkaCluster, side: str) -> None:
    topic, admin = DATA.topic(side), ClusterAdmin(cluster.bootstrap_servers)
    admin.create(topic.name, [(LEADER, FOLLOWER)], topic.configs())


def _grow(cluster: KafkaCluster, side: str, more_mib: int) -> None:
    """Write records, and wait until only active segments are local."""
    client, topic = Cluster(cluster.bootstrap_servers), DATA.topic(side)
    more = replace(DATA, segments=more_mib * MIB // DATA.segment_bytes)
    write(client, more, topic.name, os.urandom(DATA.record_bytes))
    ClusterAdmin(cluster.bootstrap_servers).wait_until_in_sync(topic.name, 0, len(cluster.brokers))
    if side == STREAMED:
        for broker in cluster.brokers:
            wait_until_gone(broker, topic)


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


def formula(rebuilds: Rebuilds) -> tuple[float, float]:
    """Fit seconds = a + bytes moved / b to all starts; return a in s and b in MiB/s."""
    every = [each for found in rebuilds.values() for each in found]
    moved_mib = [each.moved_bytes / MIB for each in every]
    line = statistics.linear_regression(moved_mib, [each.in_sync_s for each in every])
    return line.intercept, 1 / line.slope


def _print(rebuilds: Rebuilds) -> None:
    start_s, mib_per_s = formula(rebuilds)
    rows: list[Row] = []
    for (side, size_mib), found in rebuilds.items():
        seconds = [each.in_sync_s for each in found]
        moved_mib = statistics.median(each.moved_bytes for each in found) / MIB
        rows.append(
            (
                f"{TOPICS[side]}, {f'{size_mib} MiB' if size_mib else 'replica kept'}",
                statistics.median(seconds),
                f"{min(seconds):.1f} - {max(seconds):.1f}",
                moved_mib,
                start_s + moved_mib / mib_per_s,
            )
        )
    title = f"broker_rebuild: seconds = {start_s:.1f} + MiB moved / {mib_per_s:.1f}"
    columns = ("", "process start to in sync, s", "spread", "moved, MiB", "by the formula, s")
    print_table(title, columns, rows)


def _result(rebuilds: Rebuilds) -> Result:
    largest = SIZES_MIB[-1]
    top, bottom = (
        Side(
            f"{TOPICS[side]}, {largest} MiB, replica wiped, s",
            [each.in_sync_s for each in rebuilds[side, largest]],
        )
        for side in (LOCAL, STREAMED)
    )
    samples = [a / b for a, b in zip(top.samples, bottom.samples, strict=True)]
    start_s, mib_per_s = formula(rebuilds)
    conditions: dict[str, object] = {
        "rounds": ROUNDS,
        "cores": os.cpu_count(),
        "store": STORE,
        "seconds": f"{start_s:.1f} + MiB moved / {mib_per_s:.1f}",
        **{
            f"{TOPICS[side]}, {size_mib} MiB (0: replica kept)": {
                "in sync after, s": [round(each.in_sync_s, 2) for each in found],
                "moved, MiB": [round(each.moved_bytes / MIB, 2) for each in found],
            }
            for (side, size_mib), found in rebuilds.items()
        },
        "note": "the ratio is that of this size: it grows with the partition",
    }
    median = statistics.median(samples)
    return Result("broker_rebuild", "ratio", median, samples, top, bottom, conditions)
