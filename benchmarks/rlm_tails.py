"""Measure rlm_tails: the CPU time of copying the records of growing segments before they roll.

Each partition has a tail every 15 s: RLM sees its first record with one pass, and copies it with
the third one after that. Counted, too: calls, bytes that are sent, and what is done at rest.
"""

import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from urllib.request import urlopen
from uuid import uuid4

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.deployment import SERVICES, Deployment, deployed
from benchmarks.measure import QUICK, Result, Side, counted_rounds, tree_cpu_seconds
from services.api.ids import TopicIdPartition
from tests.harness.eventually import eventually
from tests.unit.rlm.kafka_bytes import PartitionFiles, batch, write_log_dir

PARTITIONS = 100
TAIL_MS = 10_000
INTERVAL_MS = 5_000
RETENTION_MS = 7 * 24 * 60 * 60 * 1000

BATCH_BYTES = 1024
"""Appended to each partition each second."""

ROUNDS = 2 if QUICK else 4
ROUND_S = 15.0 if QUICK else 30.0
WARM_UP_S = 40.0
IDLE_S = 30.0
_HEADER_BYTES = 61
_ID = uuid4()


def run() -> Result:
    with tempfile.TemporaryDirectory(prefix="sediment-bench-") as name:
        log_dir = write_log_dir(Path(name) / "log")
        logs = [GrowingLog(log_dir, TopicIdPartition(_ID, "bench", n)) for n in range(PARTITIONS)]
        settings = {"RLM_REMOTE_LOG_MANAGER_TASK_INTERVAL_MS": str(INTERVAL_MS)}
        with deployed([log_dir], settings) as services:
            eventually(lambda: _copies_tails(services), deadline_ms=60_000)
            with _growing(logs):
                Event().wait(WARM_UP_S)
                total, sides, requests, tails = _measured(services)
            before_roll = _settled_bytes(services)
            idle, idle_ms = _while_idle(services)
            stored = _stored_bytes(services)
            appended = sum(log.size_bytes for log in logs)
            for log in logs:
                log.roll()
            eventually(lambda: _sent_bytes(services) > before_roll)
            sent = _settled_bytes(services)
    return Result(
        "rlm_tails",
        "ms of CPU time for each tail, of RLM, RSM and RLMM together",
        statistics.median(total.samples),
        total.samples,
        total,
        Side(""),
        {
            "partitions": PARTITIONS,
            "appended by each, bytes/s": BATCH_BYTES,
            "sediment.tail.copy.ms": TAIL_MS,
            "interval_ms": INTERVAL_MS,
            "tails": tails,
            "round_s": ROUND_S,
            **{f"{name}, ms a tail": round(statistics.median(s), 2) for name, s in sides.items()},
            "calls a tail": {what: round(n / tails, 2) for what, n in requests.items()},
            f"calls in {IDLE_S:.0f} s without anything new": dict(idle),
            "ms of CPU time a second without anything new": {
                name: round(ms, 1) for name, ms in idle_ms.items()
            },
            "bytes of logs sent for each appended, rolled segments included": round(
                sent / appended, 3
            ),
            "bytes stored for each appended, by kind, before the roll": {
                kind: round(size / appended, 3) for kind, size in stored.items()
            },
        },
    )


class GrowingLog:
    """The log of a partition, to whose only segment batches of one record are appended."""

    def __init__(self, log_dir: Path, name: TopicIdPartition) -> None:
        self._files = PartitionFiles(log_dir, name)
        self._next_offset = 0
        self.size_bytes = 0
        self._files.segment(0, [])

    def append(self) -> None:
        data = batch(
            self._next_offset,
            payload=bytes(BATCH_BYTES - _HEADER_BYTES),
            timestamp_ms=time.time_ns() // 1_000_000,
        )
        with self._files.file(0, ".log").open("ab") as log:
            log.write(data)
        self._next_offset += 1
        self.size_bytes += len(data)

    def roll(self) -> None:
        self._files.snapshot(self._next_offset)
        self._files.segment(self._next_offset, [])


@contextmanager
def _growing(logs: list[GrowingLog]) -> Iterator[None]:
    """Append to each log each second, one log after the other."""
    stopped = Event()

    def append() -> None:
        due_s = time.monotonic()
        while True:
            for log in logs:
                due_s += 1 / len(logs)
                if stopped.wait(max(due_s - time.monotonic(), 0)):
                    return
                log.append()

    thread = Thread(target=append)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _copies_tails(services: Deployment) -> bool:
    """Turn tails on, once RLM has announced the topic."""
    if len(services.rlmm.list_partitions().partitions) < PARTITIONS:
        return False
    services.rlmm.put_topic_config(
        _ID, {"sediment.tail.copy.ms": str(TAIL_MS), "retention.ms": str(RETENTION_MS)}, now=True
    )
    return True


def _measured(
    services: Deployment,
) -> tuple[Side, dict[str, list[float]], Counter[str], float]:
    """Return the ms of CPU time for each tail, of all and by process; calls, and tails."""
    total = Side("ms a tail")
    sides: dict[str, list[float]] = {name: [] for name in SERVICES}
    first, first_tails = _calls(services), _of_rlm(services, "sediment_rlm_copied_segments")
    tails = first_tails
    for _ in counted_rounds("rlm_tails", ROUNDS):
        before, tails_before = _cpu_s(services), tails
        Event().wait(ROUND_S)
        used = {name: cpu_s - before[name] for name, cpu_s in _cpu_s(services).items()}
        tails = _of_rlm(services, "sediment_rlm_copied_segments")
        for name, cpu_s in used.items():
            sides[name].append(1000 * cpu_s / (tails - tails_before))
        total.samples.append(1000 * sum(used.values()) / (tails - tails_before))
        total.cpu_seconds.append(sum(used.values()))
    calls = _calls(services)
    calls.subtract(first)
    return total, sides, calls, tails - first_tails


def _cpu_s(services: Deployment) -> dict[str, float]:
    return {name: tree_cpu_seconds(pid) for name, pid in services.pids.items()}


def _while_idle(services: Deployment) -> tuple[Counter[str], dict[str, float]]:
    """Return the calls to RSM and RLMM, and the CPU time of each process in ms/s, at rest."""
    before, cpu_s = _calls(services), _cpu_s(services)
    Event().wait(IDLE_S)
    used = {name: 1000 * (now - cpu_s[name]) / IDLE_S for name, now in _cpu_s(services).items()}
    after = _calls(services)
    after.subtract(before)
    return +after, used


def _settled_bytes(services: Deployment) -> float:
    """Wait until no more bytes of logs are sent; return how many were."""
    sent = -1.0

    def is_settled() -> bool:
        nonlocal sent
        before, sent = sent, _sent_bytes(services)
        return before == sent

    eventually(is_settled, deadline_ms=300_000, poll_ms=TAIL_MS + 3 * INTERVAL_MS)
    return sent


def _sent_bytes(services: Deployment) -> float:
    return _of_rlm(services, "sediment_rlm_copied_bytes")


def _stored_bytes(services: Deployment) -> Counter[str]:
    """Return the bytes of all objects of tails, by kind."""
    sizes: Counter[str] = Counter()
    for item in services.s3_client().list_objects(services.bucket, recursive=True):
        name = str(item.object_name)
        sizes[name.rpartition(".")[2]] += item.size or 0
    return sizes


def _calls(services: Deployment) -> Counter[str]:
    """Return how often each RPC of RSM and RLMM was called, and the transactions of RLMM."""
    calls: Counter[str] = Counter()
    for service in ("rsm", "rlmm"):
        for name, labels, value in _samples(services, service):
            if name == "sediment_rpc_seconds_count":
                calls[labels["method"].rpartition("/")[2]] += int(value)
            if name == "sediment_rlmm_database_seconds_count":
                calls[f"database: {labels['operation']}"] += int(value)
    return calls


def _of_rlm(services: Deployment, metric: str) -> float:
    return sum(v for name, _, v in _samples(services, "rlm") if name == f"{metric}_total")


def _samples(services: Deployment, service: str) -> Iterator[tuple[str, dict[str, str], float]]:
    address = getattr(services.stack.endpoints, f"{service}_metrics")
    with urlopen(f"http://{address}/metrics", timeout=30) as answer:
        page = str(answer.read(), "utf-8")
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value
