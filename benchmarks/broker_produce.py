"""Measure broker_produce: the latency of a producer while segments are copied into the tier.

Each side takes records at the same rate, alone and beside a consumer that catches up from the
tier. The consumer has a lower priority. A control that itself moves makes a figure worthless, so
that none is given then.
"""

import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event

from rich.console import Console
from rich.progress import track

from benchmarks.brokers import (
    LOCAL,
    LTS,
    SIDES,
    STREAMED,
    TIERS,
    Brokers,
    Case,
    produce,
    running_brokers,
    wait_until_gone,
)
from benchmarks.java_client import Consumer, JavaClient
from benchmarks.measure import MIB, QUICK, Result, Row, Side, print_table
from benchmarks.store import STORE
from demos.kafka_client import Cluster

ROUNDS = 2 if QUICK else 5
SECONDS = 3 if QUICK else 6
RECORD_BYTES = 1024
MIB_PER_S = 15
RECORDS_PER_S = MIB_PER_S * MIB // RECORD_BYTES
READER_NICENESS = 10
MOST_CONTROL_MOVES = 2.0
"""If the control's largest p99 is more than this times its smallest, there is no result."""

PRODUCED = Case("produced", "produced", 1, 0, RECORD_BYTES, 16, segment_bytes=8 * MIB)
CAUGHT_UP = Case("caught up", "caught-up", 1, 2, 1_000, 16, segment_bytes=32 * MIB)
READINGS = {False: "alone", True: "beside a reader"}


@dataclass(frozen=True)
class Produced:
    """One run of the producer.

    Attributes:
        read_mib_per_s: of the consumer beside it; 0 without one.
    """

    records_per_s: float
    p50_ms: float
    p99_ms: float
    read_mib_per_s: float


Runs = Mapping[tuple[str, bool], list[Produced]]
"""The runs of each side, without a reader and with one, round by round."""


@dataclass(frozen=True)
class Bench:
    """Brokers with both topics, and the two clients."""

    brokers: Brokers
    ends: Mapping[str, Sequence[int]]
    producer: JavaClient
    consumer: Consumer

    def produce(self, side: str, has_reader: bool) -> Produced:
        """Write at the rate, then wait until the tier has all, so that the next run is alone."""
        broker, topic = self.brokers.brokers[side], PRODUCED.topic(side)
        with self._reading(side, has_reader) as speeds:
            words = (topic.name, RECORD_BYTES, RECORDS_PER_S, RECORDS_PER_S * SECONDS)
            answer = self.producer.ask(broker.bootstrap_servers, *words)
        if side != LOCAL:
            wait_until_gone(broker, topic)
        records_per_s, p50_ms, p99_ms = map(float, answer)
        read_mib_per_s = statistics.median(speeds) if speeds else 0.0
        return Produced(records_per_s, p50_ms, p99_ms, read_mib_per_s)

    @contextmanager
    def _reading(self, side: str, has_reader: bool) -> Iterator[list[float]]:
        """Read the other topic again and again; yield the speed of each reading that ended."""
        speeds: list[float] = []
        ended = Event()

        def read() -> None:
            broker, topic = self.brokers.brokers[side], CAUGHT_UP.topic(side)
            while not ended.is_set():
                size, _, all_s = self.consumer.read(
                    broker.bootstrap_servers, topic.name, CAUGHT_UP.isolation, self.ends[side]
                )
                speeds.append(size / MIB / all_s)

        with ThreadPoolExecutor(1) as pool:
            reader = pool.submit(read) if has_reader else None
            try:
                yield speeds
            finally:
                ended.set()
            if reader is not None:
                reader.result()


def run() -> Result:
    runs: dict[tuple[str, bool], list[Produced]] = {}
    cells = [(side, has_reader) for has_reader in READINGS for side in SIDES]
    with _bench() as bench:
        for side, has_reader in cells:
            bench.produce(side, has_reader)  # code and pages are warm for all
        for _ in track(range(ROUNDS), description="broker_produce", console=Console(stderr=True)):
            for side, has_reader in cells:
                runs.setdefault((side, has_reader), []).append(bench.produce(side, has_reader))
    _print(runs)
    return _result(runs)


@contextmanager
def _bench() -> Iterator[Bench]:
    with (
        running_brokers() as brokers,
        JavaClient("PacedProducer.java") as producer,
        Consumer(READER_NICENESS) as consumer,
    ):
        produce(CAUGHT_UP, brokers.brokers)
        for side, broker in brokers.brokers.items():
            Cluster(broker.bootstrap_servers).create(PRODUCED.topic(side))
        ends = {
            tier: wait_until_gone(brokers.brokers[tier], CAUGHT_UP.topic(tier)) for tier in TIERS
        }
        yield Bench(brokers, {**ends, LOCAL: ends[LTS]}, producer, consumer)


def _control_moves(runs: Runs, has_reader: bool) -> float:
    """Return the control's largest p99 over its smallest."""
    p99s = [each.p99_ms for each in runs[LOCAL, has_reader]]
    return max(p99s) / min(p99s)


def _has_result(runs: Runs, has_reader: bool) -> bool:
    return _control_moves(runs, has_reader) <= MOST_CONTROL_MOVES


def _print(runs: Runs) -> None:
    rows: list[Row] = []
    for (side, has_reader), found in runs.items():
        p99s = [each.p99_ms for each in found]
        rows.append(
            (
                f"{side}, {READINGS[has_reader]}",
                statistics.median(each.p50_ms for each in found),
                statistics.median(p99s),
                f"{min(p99s):.1f} - {max(p99s):.1f}",
                statistics.median(each.records_per_s for each in found),
                statistics.median(each.read_mib_per_s for each in found) if has_reader else None,
            )
        )
    columns = ("", "p50, ms", "p99, ms", "spread of p99", "records/s", "read, MiB/s")
    print_table(f"broker_produce: {MIB_PER_S} MiB/s of 1 KiB records", columns, rows)
    for has_reader, name in READINGS.items():
        if not _has_result(runs, has_reader):
            Console().print(
                f"no result {name}: the p99 of the control, which is not tiered, itself moved by "
                f"{_control_moves(runs, has_reader):.1f}x; measure on a quieter machine"
            )


def _result(runs: Runs) -> Result:
    top, bottom = (
        Side(f"{name}, p99, ms", [each.p99_ms for each in runs[side, False]])
        for side, name in ((STREAMED, "copying, streamed"), (LOCAL, "not tiered"))
    )
    has_result = _has_result(runs, has_reader=False)
    pairs = zip(top.samples, bottom.samples, strict=True)
    samples = [a / b for a, b in pairs] if has_result else []
    conditions: dict[str, object] = {
        "rounds": ROUNDS,
        "seconds a run": SECONDS,
        "cores": os.cpu_count(),
        "store": STORE,
        "rate, MiB/s": MIB_PER_S,
        "reader's niceness": READER_NICENESS,
        "control moves": {
            name: round(_control_moves(runs, has_reader), 2)
            for has_reader, name in READINGS.items()
        },
        "has a result": {
            name: _has_result(runs, has_reader) for has_reader, name in READINGS.items()
        },
        "p99, ms": {
            f"{side}, {READINGS[has_reader]}": [round(each.p99_ms, 1) for each in found]
            for (side, has_reader), found in runs.items()
        },
    }
    median = statistics.median(samples) if has_result else None
    return Result("broker_produce", "ratio of p99", median, samples, top, bottom, conditions)
