"""Measure broker_produce_*: the latency of a producer while its segments are copied into the tier.

Two clusters of two brokers are alike but for the tier, which one of them does not have: it is the
control. Both take the same records by turns, until the control moves little. Groups of processes
are kept apart (`benchmarks.apart`): a tier and clients have machines of their own in production.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median, quantiles
from threading import Event

from benchmarks.apart import Apart, apart
from benchmarks.brokers import (
    BROKER,
    JVM_OPTIONS,
    LOCAL,
    STREAMED,
    Case,
    bench_directory,
    running_stack,
    wait_until_gone,
    write,
)
from benchmarks.java_client import JavaClient
from benchmarks.measure import MIB, QUICK, Result, Side, print_table, say
from benchmarks.store import STORE
from demos.kafka_broker import plugin_settings
from demos.kafka_client import Cluster
from tests.harness.kafka_broker import plugin_jar
from tests.harness.kafka_cluster import ClusterAdmin, KafkaCluster

MIN_ROUNDS, MAX_ROUNDS = (2, 2) if QUICK else (5, 20)
LIMIT_S = 215.0
"""No round begins later: each of these benchmarks is over in five minutes."""
MOST_CONTROL_MOVES = 1.3
"""There is no result if the control's upper quartile is more than this times its lower one."""
SECONDS = 4
RECORD_BYTES = 1024
MIB_PER_S = 15
RECORDS_PER_S = MIB_PER_S * MIB // RECORD_BYTES
PERCENTILES = ("P50", "P95", "P99", "P99.9")
OF_RESULT = "P99"
LEADER, FOLLOWER = 1, 2
# The controllers are in the followers' group: a late heartbeat would fence a leader.
SHARES = {"leaders": None, "producer": None, "followers": None, "tier": 2048, "readers": 512}
# The second compiler takes a core for half a minute in each JVM, longer than a case may last.
FIRST_COMPILER = "-XX:TieredStopAtLevel=1"
SETTINGS = {
    **BROKER,
    "default.replication.factor": "2",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "2",
    "log.segment.delete.delay.ms": "1000",
}
# Segments so small that each run copies some of each partition.
PRODUCED = {
    1: Case("produced", "produced", 1, 0, RECORD_BYTES, 16, segment_bytes=8 * MIB),
    100: Case("produced", "produced", 100, 0, RECORD_BYTES, 16, segment_bytes=1 * MIB),
}
READ = Case("read", "read", 1, 2 if QUICK else 4, 1_000, 16, segment_bytes=32 * MIB)
READERS = {"": 0, "reader": 1, "readers": 8, "rebuild": 0}
SIDES = {LOCAL: "no tier", STREAMED: "copying"}


@dataclass(frozen=True)
class Load:
    """One of the cases.

    Attributes:
        beside: a key of READERS.
    """

    acks: str
    partitions: int
    beside: str

    @property
    def name(self) -> str:
        words = ("broker_produce", f"acks_{self.acks}", f"of_{self.partitions}", self.beside)
        return "_".join(filter(None, words))


@dataclass(frozen=True)
class Produced:
    """One run of the producer: its rate, its percentiles in ms, and MiB/s of what is beside it."""

    records_per_s: float
    ms: Mapping[str, float]
    beside_mib_per_s: float


Runs = Mapping[str, list[Produced]]
"""The runs of each side, round by round."""


@dataclass(frozen=True)
class Bench:
    """Both clusters with their topics, and the clients."""

    load: Load
    clusters: Mapping[str, KafkaCluster]
    end_offset: int
    producer: JavaClient
    readers: JavaClient

    def produce(self, side: str) -> Produced:
        """Write at the rate, then wait until the tier has all, so that the next run is alone."""
        broker, topic = self.clusters[side].broker(LEADER), PRODUCED[self.load.partitions]
        words = (self.load.acks, RECORD_BYTES, RECORDS_PER_S, RECORDS_PER_S * SECONDS)
        with self._beside(side) as moved:
            answer = self.producer.ask(broker.bootstrap_servers, topic.topic(side).name, *words)
        if side == STREAMED:
            wait_until_gone(broker, topic.topic(side))
        records_per_s, *ms = map(float, answer)
        figures = dict(zip(PERCENTILES, ms, strict=True))
        return Produced(records_per_s, figures, sum(moved))

    @contextmanager
    def _beside(self, side: str) -> Iterator[list[float]]:
        """Read, or rebuild, meanwhile; the list has the MiB/s in the end."""
        moved: list[float] = []
        if self.load.beside == "rebuild":
            with self._rebuilding(side, moved):
                yield moved
        elif count := READERS[self.load.beside]:
            bootstrap = self.clusters[side].broker(LEADER).bootstrap_servers
            self.readers.ask(bootstrap, READ.topic(side).name, self.end_offset, count)
            yield moved
            size, took_s = map(float, self.readers.ask("end"))
            moved.append(size / MIB / took_s)
        else:
            yield moved

    @contextmanager
    def _rebuilding(self, side: str, moved: list[float]) -> Iterator[None]:
        """Take the follower's replica of the other topic away and give it back, again and again."""
        admin = ClusterAdmin(self.clusters[side].broker(LEADER).bootstrap_servers)
        name, ended = READ.topic(side).name, Event()
        folder = self.clusters[side].broker(FOLLOWER).log_dir / f"{name}-0"

        def rebuild() -> None:
            began, size = time.perf_counter(), 0
            while not ended.is_set():
                admin.reassign(name, 0, [LEADER])
                admin.reassign(name, 0, [LEADER, FOLLOWER])
                size += sum(path.stat().st_size for path in folder.glob("*.log"))
            moved.append(size / MIB / (time.perf_counter() - began))

        with ThreadPoolExecutor(1) as pool:
            rebuilding = pool.submit(rebuild)
            try:
                yield
            finally:
                ended.set()
            rebuilding.result()


def run(load: Load) -> Result:
    due_s = time.monotonic() + LIMIT_S
    runs: dict[str, list[Produced]] = {side: [] for side in SIDES}
    with _bench(load) as (bench, how):
        for side in (*SIDES, *SIDES):
            bench.produce(side)  # code and pages are warm for both
        for number in range(MAX_ROUNDS):
            if time.monotonic() > due_s or (number >= MIN_ROUNDS and _has_result(runs, OF_RESULT)):
                break
            for side in (list(SIDES), [*reversed(SIDES)])[number % 2]:
                runs[side].append(bench.produce(side))
            last = {SIDES[side]: each[-1].ms[OF_RESULT] for side, each in runs.items()}
            left_s = due_s - time.monotonic()
            say(f"{load.name}: round {number + 1}, {OF_RESULT} in ms: {last}; {left_s:.0f} s left")
    _print(load, runs)
    return _result(load, runs, how)


RUNS: dict[str, Callable[[], Result]] = {
    load.name: partial(run, load)
    for beside in READERS
    for partitions in PRODUCED
    for load in (Load("1", partitions, beside), Load("all", partitions, beside))
}
"""The benchmarks by name, one for each case."""


@contextmanager
def _bench(load: Load) -> Iterator[tuple[Bench, str]]:
    with ExitStack() as opened:
        groups = opened.enter_context(apart(SHARES))
        directory = opened.enter_context(bench_directory())
        stack = opened.enter_context(running_stack(directory))
        plugin = plugin_settings(plugin_jar(), stack.endpoints.rsm, stack.endpoints.rlmm)
        clusters = {
            side: opened.enter_context(
                KafkaCluster(
                    directory / side,
                    [{**SETTINGS, **own}] * 2,
                    jvm_options=[*JVM_OPTIONS, FIRST_COMPILER],
                )
            )
            for side, own in {LOCAL: {}, STREAMED: plugin}.items()
        }
        producer = opened.enter_context(JavaClient("PacedProducer.java", FIRST_COMPILER))
        readers = opened.enter_context(JavaClient("Readers.java", FIRST_COMPILER))
        for side, cluster in clusters.items():
            _create(cluster, side, load)
        end = 0
        if load.beside:
            (end,) = wait_until_gone(clusters[STREAMED].broker(LEADER), READ.topic(STREAMED))
        _place(groups, clusters, producer, readers)
        yield Bench(load, clusters, end, producer, readers), groups.how


def _create(cluster: KafkaCluster, side: str, load: Load) -> None:
    admin = ClusterAdmin(cluster.bootstrap_servers)
    produced, read = PRODUCED[load.partitions].topic(side), READ.topic(side)
    admin.create(produced.name, [(LEADER, FOLLOWER)] * load.partitions, produced.configs())
    if load.beside:
        admin.create(read.name, [(LEADER, FOLLOWER)], read.configs())
        write(Cluster(cluster.bootstrap_servers), READ, read.name, os.urandom(READ.record_bytes))


def _place(
    groups: Apart,
    clusters: Mapping[str, KafkaCluster],
    producer: JavaClient,
    readers: JavaClient,
) -> None:
    for group, node_id in (("leaders", LEADER), ("followers", FOLLOWER)):
        groups.place(group, [cluster.broker(node_id).pid for cluster in clusters.values()])
    groups.place("followers", [cluster.controller.pid for cluster in clusters.values()])
    groups.place("producer", [producer.pid])
    groups.place("readers", [readers.pid])
    groups.place("tier", [os.getpid()])


def _spread(samples: list[float]) -> float:
    """Return the upper quartile over the lower one."""
    low, _, high = quantiles(samples, n=4, method="inclusive")
    return high / low


def _samples(runs: Runs, side: str, percentile: str) -> list[float]:
    return [each.ms[percentile] for each in runs[side]]


def _has_result(runs: Runs, percentile: str) -> bool:
    return _spread(_samples(runs, LOCAL, percentile)) <= MOST_CONTROL_MOVES


def _ratios(runs: Runs, percentile: str) -> list[float]:
    """Return copying over the control, round by round; empty if there is no result."""
    pairs = zip(*(_samples(runs, side, percentile) for side in (STREAMED, LOCAL)), strict=True)
    return [a / b for a, b in pairs] if _has_result(runs, percentile) else []


def _text(samples: list[float]) -> str:
    """Return the median and the spread; without samples, that there is no result."""
    if not samples:
        return "no result"
    return f"{median(samples):.2f} ({min(samples):.2f} - {max(samples):.2f})"


def _print(load: Load, runs: Runs) -> None:
    print_table(
        f"{load.name}: {MIB_PER_S} MiB/s of 1 KiB records, {len(runs[LOCAL])} rounds, ms",
        ("", *SIDES.values(), "ratio", "quartiles of the control"),
        [
            (
                percentile,
                *(_text(_samples(runs, side, percentile)) for side in SIDES),
                _text(_ratios(runs, percentile)),
                f"{_spread(_samples(runs, LOCAL, percentile)):.2f}",
            )
            for percentile in PERCENTILES
        ],
    )


def _result(load: Load, runs: Runs, how: str) -> Result:
    top, bottom = (
        Side(f"{SIDES[side]}, {OF_RESULT}, ms", _samples(runs, side, OF_RESULT))
        for side in (STREAMED, LOCAL)
    )
    samples = _ratios(runs, OF_RESULT)
    conditions: dict[str, object] = {
        "rounds": len(runs[LOCAL]),
        "seconds a run": SECONDS,
        "cores": os.cpu_count(),
        "apart by": how,
        "store": STORE,
        "rate, MiB/s": MIB_PER_S,
        "spread of the control": {
            each: round(_spread(_samples(runs, LOCAL, each)), 2) for each in PERCENTILES
        },
        "ratios": {each: _text(_ratios(runs, each)) for each in PERCENTILES},
        "ms": {
            name: {each: _text(_samples(runs, side, each)) for each in PERCENTILES}
            for side, name in SIDES.items()
        },
        "records/s": {
            name: round(median(each.records_per_s for each in runs[side]))
            for side, name in SIDES.items()
        },
        "beside, MiB/s": {
            name: round(median(each.beside_mib_per_s for each in runs[side]))
            for side, name in SIDES.items()
        },
    }
    value = median(samples) if samples else None
    return Result(load.name, "ratio of P99", value, samples, top, bottom, conditions)
