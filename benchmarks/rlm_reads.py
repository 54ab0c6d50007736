"""Measure reads of the tier through RLM's Fetch.

rlm_catch_up: a partition from its first offset to its last, against the bare client's GETs of the
same objects. rlm_fetch_hit: bytes that RLM has in memory, against FetchLogSegment of as many.
rlm_cold_first_record: the first records of a partition of which no service has anything in memory,
against the bare client's GET and a look-up.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from struct import Struct

from benchmarks import consumer
from benchmarks.bare_client import BareClient
from benchmarks.counts import Counted
from benchmarks.deployment import Deployment, deployed
from benchmarks.measure import MIB, QUICK, ROUNDS, Result, mib_per_s, ratio, tree_cpu_seconds
from benchmarks.store import STORE
from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import FetchError, FetchPartition, FetchRequest
from services.api.remote_log_metadata_manager import all_segments
from services.rlm.copy.ship import ShipOutcome, ship
from services.rlm.kafka_log.log_dir import find_partitions
from services.rpc.client.log import RemoteLogManagerClient
from tests.harness.synthetic_log import make_log_dir

PARTITION_BYTES = (128 if QUICK else 1024) * MIB
SEGMENT_BYTES = 64 * MIB
FETCH_BYTES = 16 * MIB
CONSUMER_BYTES = 4 * MIB
COLD_CALLS = 10 if QUICK else 25
COLD_SEGMENT_BYTES = 2 * MIB
HIT_BYTES = 8 * MIB
MS = 1000.0
_HEAD = Struct(">qi11xi")
_HEADER_BYTES = 12


@contextmanager
def shipped(
    partitions: int,
    segments: int,
    segment_bytes: int,
    settings: Mapping[str, str] | None = None,
) -> Iterator[tuple[Deployment, list[TopicIdPartition]]]:
    """Deploy RLM without a log directory beside a tier with these partitions."""
    with (
        tempfile.TemporaryDirectory(prefix="sediment-bench-") as name,
        deployed(settings=settings) as services,
    ):
        log_dir = Path(name) / "log"
        make_log_dir(log_dir, partitions, segments, segment_bytes)
        names = sorted(find_partitions([log_dir]).partitions, key=lambda n: n.partition)
        report = ship([log_dir], services.rsm, services.rlmm)
        if report.outcome is not ShipOutcome.DONE:
            raise RuntimeError(f"not everything was shipped: {report}")
        yield services, names


class CpuSeconds:
    """Adds up the CPU time of processes while a function runs, each with its children.

    Args:
        pids: by name; the benchmark's own process is counted as "client".
    """

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = {**pids, "client": os.getpid()}
        self._spent_s = dict.fromkeys(self._pids, 0.0)
        self._runs = 0

    def of(self, work: Callable[[int], float], argument: int) -> float:
        before = {name: self._now_s(name) for name in self._pids}
        found = work(argument)
        for name, cpu_s in before.items():
            self._spent_s[name] += self._now_s(name) - cpu_s
        self._runs += 1
        return found

    def per_gib(self, size_bytes: int) -> dict[str, float]:
        """Return the seconds of each process for a GiB, if each run had so many bytes."""
        gib = size_bytes * self._runs / 1024 / MIB
        return {name: round(spent_s / gib, 2) for name, spent_s in self._spent_s.items()}

    def _now_s(self, name: str) -> float:
        if name == "client":
            return time.process_time()
        return tree_cpu_seconds(self._pids[name])


def run_catch_up() -> Result:
    return _catch_up("rlm_catch_up", {})


def run_catch_up_direct() -> Result:
    return _catch_up(
        "rlm_catch_up_direct", {"RLM_DIRECT_READS": "true", "RSM_DIRECT_READS": "true"}
    )


def _catch_up(benchmark: str, settings: Mapping[str, str]) -> Result:
    segments = PARTITION_BYTES // SEGMENT_BYTES
    with (
        shipped(1, segments, SEGMENT_BYTES, settings) as (services, (name,)),
        consumer.connected(services.stack.endpoints.rlm_consumers, CONSUMER_BYTES) as reader,
    ):
        processes = {**services.pids, "store": services.stack.endpoints.pids["s3"]}
        cpu_s = CpuSeconds(processes)
        bare = _bare(services)
        keys = _log_keys(services)
        size = sum(keys.values())

        def catch_up(fetch_bytes: int) -> float:
            def read() -> None:
                got = read_all(services.rlm, name, fetch_bytes)
                if got != size:
                    raise RuntimeError(f"{got} of {size} bytes came")

            return mib_per_s(size, read)

        def get_all() -> None:
            for key, key_bytes in keys.items():
                bare.fetch(key, 0, key_bytes)

        def consumed(kind: int) -> float:
            fetch_bytes, is_committed = kinds[kind]
            return mib_per_s(size, lambda: reader.read_all(name, fetch_bytes, size, is_committed))

        catch_up(FETCH_BYTES)
        get_all()
        of_one_mib: list[float] = []
        kinds = [(MIB, False), (MIB, True), (CONSUMER_BYTES, False)]
        by_consumer: list[list[float]] = [[] for _ in kinds]
        consumer_cpu_s = [CpuSeconds(processes) for _ in kinds]
        counted = services.counted("MiB", size / MIB)
        copied_bytes = [0.0] * len(kinds)

        def also() -> None:
            of_one_mib.append(catch_up(MIB))
            for kind, rates in enumerate(by_consumer):
                before = _copied_bytes(counted)
                rates.append(consumer_cpu_s[kind].of(consumed, kind))
                copied_bytes[kind] = _copied_bytes(counted) - before

        result = ratio(
            benchmark,
            3 if QUICK else 5,
            (
                f"Fetch, {FETCH_BYTES // MIB} MiB each, MiB/s",
                lambda: cpu_s.of(catch_up, FETCH_BYTES),
            ),
            ("bare client's GETs, MiB/s", lambda: mib_per_s(size, get_all)),
            services.pids,
            {
                "partition_bytes": size,
                "segments": len(keys),
                "payload": "plaintext, no policy",
                "RSM_VERIFY_READS": services.rsm_default("verify_reads"),
                "store": STORE,
            },
            beside=also,
            counted=counted,
        )
        result.conditions["Fetch, 1 MiB each, MiB/s"] = statistics.median(of_one_mib)
        for (fetch_bytes, is_committed), rates, cpu, copied in zip(
            kinds, by_consumer, consumer_cpu_s, copied_bytes, strict=True
        ):
            what = f"Kafka's Fetch, {fetch_bytes // MIB} MiB each"
            what += ", READ_COMMITTED" if is_committed else ""
            result.conditions[f"{what}, MiB/s"] = statistics.median(rates)
            result.conditions[f"{what}, CPU s per GiB"] = cpu.per_gib(size)
            result.conditions[f"{what}, copies of a byte"] = round(copied / size, 2)
        result.conditions["CPU s per GiB"] = cpu_s.per_gib(size)
        return result


def _copied_bytes(counted: Counted) -> float:
    counters = counted.counters.read()
    return sum(value for name, value in counters.items() if name.startswith("bytes copied"))


def run_fetch_hit() -> Result:
    with shipped(1, 1, 2 * HIT_BYTES) as (services, (name,)):
        segment = next(iter(all_segments(services.rlmm, name)))

        def fetch() -> None:
            for _ in range(8):
                _fetched(services.rlm, name, 0, HIT_BYTES)

        def fetch_segment() -> None:
            for _ in range(8):
                for _chunk in services.rsm.fetch_log_segment(segment, 0, HIT_BYTES - 1):
                    pass

        fetch()
        fetch_segment()
        return ratio(
            "rlm_fetch_hit",
            ROUNDS,
            ("Fetch, MiB/s", lambda: mib_per_s(8 * HIT_BYTES, fetch)),
            ("FetchLogSegment, MiB/s", lambda: mib_per_s(8 * HIT_BYTES, fetch_segment)),
            services.pids,
            {"fetch_bytes": HIT_BYTES, "store": STORE},
            counted=services.counted("MiB", 8 * HIT_BYTES / MIB),
        )


def run_cold_first_record() -> Result:
    rounds = ROUNDS + 1
    with shipped(rounds * COLD_CALLS, 1, COLD_SEGMENT_BYTES) as (services, names):
        bare, keys, unread = _bare(services), list(_log_keys(services)), iter(names)

        def first_records() -> float:
            return statistics.median(
                _seconds(services, next(unread)) * MS for _ in range(COLD_CALLS)
            )

        def get_and_look_up() -> float:
            gets, look_ups = [], []
            for key, name in zip(keys[:COLD_CALLS], names, strict=False):
                began = time.perf_counter()
                bare.fetch(key, 0, MIB)
                got = time.perf_counter()
                services.rlmm.remote_log_segment_metadata(name, 0, 0)
                gets.append(got - began)
                look_ups.append(time.perf_counter() - got)
            return (statistics.median(gets) + statistics.median(look_ups)) * MS

        first_records()
        get_and_look_up()
        return ratio(
            "rlm_cold_first_record",
            ROUNDS,
            ("Fetch of 1 MiB, first part, p50, ms", first_records),
            ("bare client's GET of 1 MiB + look-up, p50 each, ms", get_and_look_up),
            services.pids,
            {
                "partitions_a_round": COLD_CALLS,
                "segment_bytes": COLD_SEGMENT_BYTES,
                "RSM_VERIFY_READS": services.rsm_default("verify_reads"),
                "store": STORE,
            },
        )


def _bare(services: Deployment) -> BareClient:
    return BareClient(services.s3_client(), services.bucket, services.part_size_bytes)


def _log_keys(services: Deployment) -> dict[str, int]:
    listed = services.s3_client().list_objects(services.bucket, recursive=True)
    found = ((str(each.object_name), int(each.size or 0)) for each in listed)
    return {key: size for key, size in found if key.endswith(".log")}


def _seconds(services: Deployment, name: TopicIdPartition) -> float:
    """Return the time to the first records of a fetch, which is then read to its end."""
    request = FetchRequest((FetchPartition(name, 0, MIB),), MIB)
    began = time.perf_counter()
    parts = services.rlm.fetch(request)
    first = next(parts)
    elapsed_s = time.perf_counter() - began
    if not first.pieces:
        raise RuntimeError(f"{name}: no records: {first.error} {first.error_message}")
    for _ in parts:
        pass
    return elapsed_s


def read_all(rlm: RemoteLogManagerClient, name: TopicIdPartition, fetch_bytes: int) -> int:
    """Read from offset 0 to the end; return the bytes of the batches."""
    offset = total = 0
    while got := _fetched(rlm, name, offset, fetch_bytes):
        size, offset = got
        total += size
    return total


def _fetched(
    rlm: RemoteLogManagerClient, name: TopicIdPartition, offset: int, fetch_bytes: int
) -> tuple[int, int] | None:
    """Fetch once; return the bytes and the next offset, or None at the end."""
    request = FetchRequest((FetchPartition(name, offset, fetch_bytes),), fetch_bytes)
    size, start = 0, offset
    while True:
        for part in rlm.fetch(request):
            if part.error is not FetchError.NONE:
                raise RuntimeError(f"offset {offset}: {part.error} {part.error_message}")
            size += part.size_bytes
            for piece in part.pieces:
                offset = _offset_after(piece, offset)
            end = part.high_watermark
        if offset > start or offset >= end:
            return (size, offset) if size else None


def _offset_after(batches: bytes | memoryview, offset: int) -> int:
    at = 0
    while at < len(batches):
        base, length, last_delta = _HEAD.unpack_from(batches, at)
        offset, at = base + last_delta + 1, at + _HEADER_BYTES + length
    return offset
