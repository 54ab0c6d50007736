"""Measure rlm_faults: for each fault, the time until RLM has caught up, and the effect on
readers.
"""

import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event
from typing import Protocol

import psutil

from benchmarks.deployment import Deployment, deployed
from benchmarks.fault_rows import Row, print_rows
from benchmarks.measure import MIB, QUICK, Result, Side, counted_rounds
from benchmarks.store import STORE
from services.api.errors import RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import all_descriptions
from services.rlm.kafka_log.log_dir import find_partitions
from tests.harness.read_loop import Read, ReadLoop, p99_s
from tests.harness.rolling_broker import RollingBroker
from tests.harness.synthetic_log import make_log_dir

OUTAGE_S = 10.0 if QUICK else 60.0
SHORT_OUTAGE_S = 10.0 if QUICK else 30.0
"""The outage of one service of ours: all rows together are to take less than twelve minutes."""
BASELINE_S = 3.0 if QUICK else 6.0
PARTITIONS = 8
SEGMENT_BYTES = 4 * MIB
ROLLS_PER_S = 2.0
HOT, COLD = "hot", "cold"
_PATIENCE_S = 600.0
_LOCAL_EVERY_S, _REMOTE_EVERY_S = 0.02, 0.2


@dataclass(frozen=True)
class Fault:
    """The kill of some servers.

    Attributes:
        servers: the killed ones (SIGKILL), by name.
        away_s: how long they stay away.
    """

    name: str
    servers: tuple[str, ...]
    away_s: float = OUTAGE_S


FAULTS = (
    Fault("store away", ("s3",)),
    Fault("RSM away", ("rsm",), SHORT_OUTAGE_S),
    Fault("database away", ("postgres",)),
    Fault("RLMM away", ("rlmm",), SHORT_OUTAGE_S),
    Fault("store and database away", ("s3", "postgres")),
    Fault("RLM away", ("rlm",), SHORT_OUTAGE_S),
    Fault("RLM killed, restarted at once", ("rlm",), 0.0),
    Fault("everything killed, restarted after 10 s", ("s3", "postgres", "rsm", "rlmm", "rlm"), 10),
)


def run() -> Result:
    rows = [_measured(FAULTS[number]) for number in counted_rounds("rlm_faults", len(FAULTS))]
    print_rows(rows)
    # An immediate restart has no outage to divide by.
    outages = [row for row, fault in zip(rows, FAULTS, strict=True) if fault.away_s]
    ratios = [row.ratio for row in outages]
    return Result(
        "rlm_faults",
        "ratio, the worst",
        max(ratios),
        ratios,
        Side("caught up after, s", [row.caught_up_s for row in outages]),
        Side("away, s", [row.away_s for row in outages]),
        {
            "partitions": PARTITIONS,
            "segment_bytes": SEGMENT_BYTES,
            "segments_rolled_per_s": ROLLS_PER_S,
            "rounds": 1,
            "store": STORE,
            "task_interval": "1 s, back-off as by default",
            "faults": [asdict(row) for row in rows],
        },
    )


def _measured(fault: Fault) -> Row:
    with tempfile.TemporaryDirectory(prefix="sediment-bench-") as name, ExitStack() as ending:
        log_dir = _log_dir(Path(name))
        services = ending.enter_context(deployed([log_dir]))
        _wait_until(lambda: _copied(services) == PARTITIONS + 1)
        names = {name.topic: name for name in find_partitions([log_dir]).partitions}
        for path in (log_dir / f"{COLD}-0").glob(f"{0:020}.*"):
            path.unlink()
        local, remote = (
            ending.enter_context(_loop(services, names[topic], every_s))
            for topic, every_s in ((HOT, _LOCAL_EVERY_S), (COLD, _REMOTE_EVERY_S))
        )
        folders = sorted(log_dir.glob(f"{HOT}-*"))
        broker = ending.enter_context(RollingBroker(folders, SEGMENT_BYTES, ROLLS_PER_S))
        Event().wait(BASELINE_S)
        return _under(fault, services, broker, local, remote)


def _under(
    fault: Fault, services: Deployment, broker: RollingBroker, local: ReadLoop, remote: ReadLoop
) -> Row:
    is_killed = "rlm" in fault.servers
    watched = None if is_killed else _Watched(services)
    killed_s = time.monotonic()
    _kill(services, fault.servers)
    gone_s = time.monotonic()
    Event().wait(fault.away_s)
    ends_s = time.monotonic()
    _start(services, fault.servers)
    back_s = time.monotonic()
    lines, growth_mib = (None, None) if watched is None else watched.since()
    # Segments that are rolled from here on are copied beside the waiting ones.
    waiting = broker.rolled
    _wait_until(lambda: _copied(services) >= waiting + PARTITIONS + 1)
    caught_up_s = time.monotonic() - back_s
    meanwhile = local.between(gone_s, ends_s)
    answered = [read for read in meanwhile if read.is_good]
    of_tier = remote.between(gone_s, ends_s)
    return Row(
        fault.name,
        back_s - killed_s,
        caught_up_s,
        p99_s(local.between(0, killed_s)) * 1000,
        p99_s(answered) * 1000 if answered else None,
        len(meanwhile) - len(answered),
        _counted(of_tier),
        max((read.took_s for read in of_tier), default=0.0),
        lines,
        growth_mib,
    )


class _Watched:
    """Watches RLM's process from now on."""

    def __init__(self, services: Deployment) -> None:
        self._log = services.stack.services["rlm"].process.log_path
        self._process = psutil.Process(services.pids["rlm"])
        self._before = self._now()

    def since(self) -> tuple[int, float]:
        """Return the new lines of its log, and its growth in MiB."""
        (lines, rss), (lines_before, rss_before) = self._now(), self._before
        return lines - lines_before, (rss - rss_before) / MIB

    def _now(self) -> tuple[int, int]:
        return self._log.read_bytes().count(b"\n"), self._process.memory_info().rss


def _log_dir(directory: Path) -> Path:
    log_dir, other = directory / "log", directory / "other"
    make_log_dir(log_dir, PARTITIONS, 1, SEGMENT_BYTES, HOT)
    make_log_dir(other, 1, 1, SEGMENT_BYTES, COLD)
    (other / f"{COLD}-0").rename(log_dir / f"{COLD}-0")
    return log_dir


def _loop(services: Deployment, name: TopicIdPartition, every_s: float) -> ReadLoop:
    return ReadLoop(services.stack.endpoints.rlm, name, 0, every_s)


def _kill(services: Deployment, names: tuple[str, ...]) -> None:
    for name in names:
        _server(services, name).kill()


def _start(services: Deployment, names: tuple[str, ...]) -> None:
    """Start the services in parallel, as a supervisor does."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: _server(services, name).start(), names))


class _Server(Protocol):
    def start(self) -> None: ...

    def kill(self) -> None: ...


def _server(services: Deployment, name: str) -> _Server:
    stack = services.stack
    servers: dict[str, _Server] = {"s3": stack.s3, "postgres": stack.postgres, **stack.services}
    return servers[name]


def _copied(services: Deployment) -> int:
    return sum(found.remote_segments for found in all_descriptions(services.rlm))


def _counted(reads: list[Read]) -> dict[str, int]:
    answers = [read.answer for read in reads]
    return {answer: answers.count(answer) for answer in sorted(set(answers))}


def _wait_until(is_so: Callable[[], bool]) -> None:
    due_s = time.monotonic() + _PATIENCE_S

    def is_so_now() -> bool:
        try:
            return is_so()
        except RetriableRemoteStorageError:  # RLM has just been killed
            return False

    while not is_so_now():
        if time.monotonic() > due_s:
            raise RuntimeError(f"not so within {_PATIENCE_S:.0f} s")
        Event().wait(0.2)
