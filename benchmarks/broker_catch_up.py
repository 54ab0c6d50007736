"""Measure broker_*: a consumer reads the tier through the plugin, against other ways to keep a log.

One run, a broker for each side, alike records: see `benchmarks.brokers`.
"""

import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache

from benchmarks.brokers import (
    BROKER_PROCESS,
    DEFAULT_INTERVAL,
    DIRECT,
    LOCAL,
    LTS,
    PROCESSES,
    SIDES,
    STREAMED,
    TIERS,
    Brokers,
    Case,
    produce,
    running_brokers,
    wait_until_gone,
)
from benchmarks.java_client import Consumer, heap_after_gc_mib
from benchmarks.measure import (
    MIB,
    QUICK,
    Result,
    Row,
    Side,
    counted_rounds,
    print_table,
    tree_cpu_seconds,
)
from benchmarks.store import STORE

ROUNDS = 2 if QUICK else 5
# Pages and indexes are warm after one reading. The JVM's compiler takes a fifth of the CPU time of
# the first readings, and little later: a broker in use runs for days.
WARM_ROUNDS = 1 if QUICK else 4
CONSUMER = "consumer"
MIDDLE_BYTES = 8 * MIB if QUICK else 32 * MIB
# So small that 64 partitions fit a round, and no larger than a chunk that is read ahead.
SMALL_BYTES = 1 * MIB if QUICK else 2 * MIB

CASES = (
    Case("16 KiB batches", "small", 1, 5, 1_000, 16),
    Case("16 KiB, read_committed", "small", 1, 5, 1_000, 16, "read_committed"),
    Case("16 KiB, 8 partitions", "small-8", 8, 2, 1_000, 16, segment_bytes=MIDDLE_BYTES),
    Case("16 KiB, 64 partitions", "small-64", 64, 2, 1_000, 16, segment_bytes=SMALL_BYTES),
    Case("960 KiB batches", "big", 1, 5, 16 * 1024, 60),
    Case("960 KiB, 8 partitions", "big-8", 8, 2, 16 * 1024, 60, segment_bytes=MIDDLE_BYTES),
)
COLD = Case("cold", "cold", 1, 2, 1_000, 16, segment_bytes=2 * SMALL_BYTES)
COLD_TOPICS = [replace(COLD, data=f"cold-{n}") for n in range(3 if QUICK else 9)]
"""Each is read once: nothing of its segments, their indexes included, is in a broker's memory."""
_ONE = [case for case in CASES if case.partitions == 1]
_UP_TO_EIGHT = [case for case in CASES if case.partitions <= 8]
"""The cases of the figures; that of 64 partitions, with small segments, is printed only."""


@dataclass(frozen=True)
class Reading:
    """One reading of a case.

    Attributes:
        cpu_ms_per_mib: of each process, by its name in tables.
    """

    mib_per_s: float
    first_record_s: float
    cpu_ms_per_mib: Mapping[str, float]


@dataclass(frozen=True)
class Bench:
    """Brokers with all topics, whose tiered segments have left the disk."""

    brokers: Brokers
    ends: Mapping[tuple[str, str], Sequence[int]]
    consumer: Consumer

    def read(self, case: Case, side: str) -> Reading:
        pids = {**self.brokers.pids(side), CONSUMER: self.consumer.pid}
        before = {name: tree_cpu_seconds(pid) for name, pid in pids.items()}
        size, first_s, all_s = self.consumer.read(
            self.brokers.brokers[side].bootstrap_servers,
            case.topic(side).name,
            case.isolation,
            # The disk has the active segments, too.
            self.ends[case.data, LTS if side == LOCAL else side],
        )
        mib = size / MIB
        cpu = {n: (tree_cpu_seconds(pid) - before[n]) * 1000 / mib for n, pid in pids.items()}
        return Reading(mib / all_s, first_s, cpu)

    def first_record_s(self, case: Case, side: str) -> float:
        """Return the time to the first record of a topic with one partition."""
        broker, topic = self.brokers.brokers[side], case.topic(side).name
        _, first_s, _ = self.consumer.read(broker.bootstrap_servers, topic, case.isolation, [1])
        return first_s


@dataclass(frozen=True)
class Figures:
    """The readings of each case and side, round by round, and the brokers' heaps after them.

    Attributes:
        cold_ms: of each side, to the first record of each of `COLD_TOPICS`.
    """

    readings: Mapping[tuple[str, str], list[Reading]]
    cold_ms: Mapping[str, list[float]]
    heap_after_gc_mib: Mapping[str, float]

    def median(self, case: Case, side: str, figure: Callable[[Reading], float]) -> float:
        return statistics.median(map(figure, self.readings[case.name, side]))

    def cpu_ms_per_mib(self, case: Case, side: str) -> dict[str, float]:
        """Return the median of each process of that side."""
        readings = self.readings[case.name, side]
        return {
            name: statistics.median(reading.cpu_ms_per_mib[name] for reading in readings)
            for name in readings[0].cpu_ms_per_mib
        }


def run_streamed() -> Result:
    return _result("broker_catch_up", STREAMED, LOCAL, _UP_TO_EIGHT)


def run_direct() -> Result:
    return _result("broker_catch_up_direct", DIRECT, LOCAL, _UP_TO_EIGHT)


def run_against_local_tiered_storage() -> Result:
    return _result("broker_vs_lts", DIRECT, LTS, _ONE)


def _result(name: str, side: str, against: str, cases: Sequence[Case]) -> Result:
    """Return the ratios of the case in which the side is worst."""
    figures = _figures()

    def ratios(case: Case) -> list[float]:
        pairs = zip(
            figures.readings[case.name, side], figures.readings[case.name, against], strict=True
        )
        return [a.mib_per_s / b.mib_per_s for a, b in pairs]

    def medians(chosen: Sequence[Case]) -> dict[str, float]:
        return {case.name: round(statistics.median(ratios(case)), 2) for case in chosen}

    worst = min(cases, key=lambda case: statistics.median(ratios(case)))
    top, bottom = (
        Side(f"{each}, MiB/s", [r.mib_per_s for r in figures.readings[worst.name, each]])
        for each in (side, against)
    )
    samples = ratios(worst)
    conditions: dict[str, object] = {
        "rounds": ROUNDS,
        "cores": os.cpu_count(),
        "store": STORE,
        "worst of": medians(cases),
        "worst": worst.name,
        "beside it": medians([case for case in CASES if case not in cases]),
        "CPU ms/MiB": {
            case.name: {
                each: _rounded(figures.cpu_ms_per_mib(case, each)) for each in (side, against)
            }
            for case in cases
        },
        "first record of a segment that was never read, ms": {
            each: [round(ms, 1) for ms in figures.cold_ms[each]] for each in SIDES
        },
        "heap after GC, MiB": _rounded(figures.heap_after_gc_mib),
    }
    return Result(name, "ratio", statistics.median(samples), samples, top, bottom, conditions)


def _rounded(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: round(figure, 2) for name, figure in figures.items()}


@cache
def _figures() -> Figures:
    readings: dict[tuple[str, str], list[Reading]] = {}
    with _bench() as bench:
        for _ in counted_rounds("broker_*, to be warm", WARM_ROUNDS):
            for case in CASES:
                for side in SIDES:
                    bench.read(case, side)
        for case in CASES:
            for side in SIDES:
                readings[case.name, side] = []
        for _ in counted_rounds("broker_*", ROUNDS):
            for case in CASES:
                for side in SIDES:
                    readings[case.name, side].append(bench.read(case, side))
        cold: dict[str, list[float]] = {side: [] for side in SIDES}
        for case in COLD_TOPICS:
            for side in SIDES:
                cold[side].append(bench.first_record_s(case, side) * 1000)
        heaps = {tier: heap_after_gc_mib(bench.brokers.brokers[tier].pid) for tier in TIERS}
    figures = Figures(readings, cold, heaps)
    _print(figures)
    return figures


def _print(figures: Figures) -> None:
    columns: dict[str, Callable[[Reading], float]] = {
        "MiB/s": lambda reading: reading.mib_per_s,
        "first record, ms": lambda reading: reading.first_record_s * 1000,
    }
    for title, figure in columns.items():
        rows: list[Row] = [
            (case.name, *(figures.median(case, side, figure) for side in SIDES)) for case in CASES
        ]
        print_table(f"broker_*: {title}", ("", *SIDES), rows)
    processes = (BROKER_PROCESS, *PROCESSES.values(), CONSUMER)
    cpu: list[Row] = [
        (case.name, side, *(own.get(name) for name in processes), sum(own.values()))
        for case in CASES
        for side in SIDES
        for own in [figures.cpu_ms_per_mib(case, side)]
    ]
    print_table("broker_*: CPU ms/MiB of each process", ("", "", *processes, "all"), cpu)
    print_table(
        "broker_*: first record of a segment that was never read, ms",
        ("", *SIDES),
        [
            (what, *(of(figures.cold_ms[side]) for side in SIDES))
            for what, of in (("median", statistics.median), ("least", min), ("most", max))
        ],
    )
    heaps = figures.heap_after_gc_mib
    print_table("broker_*: heap after GC, MiB", tuple(heaps), [tuple(heaps.values())])


@contextmanager
def _bench() -> Iterator[Bench]:
    with running_brokers() as brokers, Consumer() as consumer:
        ends = {}
        data = {case.data: case for case in (*CASES, *COLD_TOPICS)}.values()
        for case in data:
            produce(case, brokers.brokers)
        for case in data:
            for side in TIERS:
                ends[case.data, side] = wait_until_gone(brokers.brokers[side], case.topic(side))
        brokers.start(DEFAULT_INTERVAL)  # the readings are not beside tasks of 91 partitions
        yield Bench(brokers, ends, consumer)
