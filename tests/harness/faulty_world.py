"""Run a world with killable servers, an RLM beside a rolling broker, and permanent consumers."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import psutil

from services.api.ids import TopicIdPartition
from services.api.partitions import EventQuery
from services.api.remote_log_manager import PartitionDescription, ProblemKind, all_descriptions
from services.api.remote_log_metadata_manager import all_events
from services.common.client_security import PLAINTEXT
from services.local.stack import ServiceProcess, rlm_settings
from services.rpc.client.channel import open_channel
from services.rpc.client.log import RemoteLogManagerClient
from tests.harness.eventually import eventually
from tests.harness.read_loop import Read, ReadLoop, took_at_most_s
from tests.harness.rolling_broker import RollingBroker
from tests.harness.synthetic_log import make_log_dir
from tests.harness.world import COPY_LEASE_MS, FINISHED, World

SEGMENT_BYTES = 256 * 1024
ROLLS_PER_S = 2.0
HOT, COLD = "hot", "cold"
MOST_LOCAL_S = 0.5
"""The limit of nine of ten local reads on a busy machine; a read that waits for the tier is
slower.
"""
_SLOWEST_S = 60.0


@dataclass
class FaultyWorld:
    """A world with faults.

    Attributes:
        rlm: copies, and serves both loops of reads.
        local: reads of data that the broker still has.
        remote: reads of data that only the tier has.
        reported: when an event happened, by name, monotonic.
    """

    world: World
    rlm: ServiceProcess
    broker: RollingBroker
    local: ReadLoop
    remote: ReadLoop
    cold_files: list[tuple[Path, Path]]
    reported: dict[str, float] = field(default_factory=dict)

    def outage(self, begin: Callable[[], None], end: Callable[[], None], lasts_s: float) -> None:
        """Run `begin`, and `end` after `lasts_s`; do not wait for the delays that result."""
        self.reported["began"] = time.monotonic()
        begin()
        self.reported["gone"] = time.monotonic()
        Event().wait(lasts_s)
        self.reported["ends"] = time.monotonic()
        end()
        self.reported["ended"] = time.monotonic()

    @property
    def outage_s(self) -> float:
        return self.reported["ended"] - self.reported["began"]

    def recovery_s(self) -> float:
        """Return the time from the end of the outage until all segments rolled by then are
        copied.
        """
        waiting = self.broker.rolled + len(self.folders(HOT))
        eventually(lambda: self.copied(HOT) >= waiting, int(_SLOWEST_S * 1000), poll_ms=50)
        return time.monotonic() - self.reported["ended"]

    def folders(self, topic: str) -> list[Path]:
        return sorted(self.world.log_dir.glob(f"{topic}-*"))

    def copied(self, topic: str) -> int:
        return sum(found.remote_segments for found in self.descriptions(topic))

    def descriptions(self, topic: str) -> list[PartitionDescription]:
        with open_channel(self.rlm.address, PLAINTEXT) as channel:
            manager = RemoteLogManagerClient(channel, self.rlm.address)
            ours = self.world.local_segments()
            return [
                found
                for found in all_descriptions(manager, [topic])
                if found.topic_id_partition in ours
            ]

    def log_lines(self) -> int:
        return self.rlm.process.log_path.read_bytes().count(b"\n")

    def rss_bytes(self) -> int:
        return int(psutil.Process(self.rlm.process.pid).memory_info().rss)

    def threads(self) -> int:
        return int(psutil.Process(self.rlm.process.pid).num_threads())

    def assert_whole(self) -> None:
        """Assert that each rolled segment is in the tier once, byte for byte, and no gap is
        recorded.
        """
        self.broker.stop()
        rolled = self.broker.rolled + len(self.folders(HOT))
        eventually(lambda: self.copied(HOT) == rolled, int(_SLOWEST_S * 1000))
        self._assert_nothing_is_lost()
        for away, home in self.cold_files:
            away.rename(home)
        eventually(lambda: len(self.world.rows()) == rolled + len(self.folders(COLD)), 30_000)
        self.world.assert_all_shipped()

    def _assert_nothing_is_lost(self) -> None:
        problems = [
            p.kind for topic in (HOT, COLD) for d in self.descriptions(topic) for p in d.problems
        ]
        assert ProblemKind.LOST_BEFORE_COPY not in problems
        with self.world.metadata() as rlmm:
            for name in self.world.local_segments():
                kinds = [event.kind for event in all_events(rlmm, EventQuery(name))]
                assert "GAP" not in kinds


def assert_local_reads_go_on(reads: list[Read], lasts_s: float) -> None:
    assert len(reads) > lasts_s / MOST_LOCAL_S
    assert all(read.is_good for read in reads)
    assert took_at_most_s(reads, 0.9) < MOST_LOCAL_S


@contextmanager
def faulty_world(
    world: World, directory: Path, *, rlm_options: dict[str, str] | None = None, hot: int = 4
) -> Iterator[FaultyWorld]:
    """Start with all present segments copied, and both loops of reads working."""
    world.log_dir = _two_topics(directory, hot)
    settings = rlm_settings(world.rsm.address, world.rlmm.address, [world.log_dir], 500)
    settings |= {
        "RLM_COPY_LEASE_MS": str(COPY_LEASE_MS),
        # By default the last wait is as long as the outage: benchmarks measure that, and a short
        # test would depend on a second more or less.
        "RLM_REMOTE_LOG_MANAGER_TASK_RETRY_BACKOFF_MAX_MS": "2000",
        # So that each read of the tier needs every service.
        "RLM_REMOTE_LOG_CHUNK_CACHE_MEMORY_BYTES": "0",
        "RLM_METADATA_MAX_AGE_MS": "0",
        "RLM_METADATA_STALE_READS_MS": "0",
        **(rlm_options or {}),
    }
    rlm = ServiceProcess("rlm", settings, directory / "rlm")
    with ExitStack() as ending:
        rlm.start()
        ending.callback(rlm.kill)
        names = {name.topic: name for name in world.local_segments() if name.partition == 0}
        eventually(lambda: [row.state for row in world.rows()] == [FINISHED] * (hot + 1), 60_000)
        cold_files = _take_away(world.log_dir / f"{COLD}-0", directory)
        made = FaultyWorld(
            world,
            rlm,
            RollingBroker(sorted(world.log_dir.glob(f"{HOT}-*")), SEGMENT_BYTES, ROLLS_PER_S),
            _loop(rlm, names[HOT], 0.02),
            _loop(rlm, names[COLD], 0.1),
            cold_files,
        )
        for loop in (made.local, made.remote):
            ending.enter_context(loop)
            eventually(loop.is_well)
        ending.enter_context(made.broker)
        yield made


def _two_topics(directory: Path, hot: int) -> Path:
    log_dir = directory / "log"
    make_log_dir(log_dir, hot, 1, SEGMENT_BYTES, HOT)
    make_log_dir(directory / "other", 1, 1, SEGMENT_BYTES, COLD)
    (directory / "other" / f"{COLD}-0").rename(log_dir / f"{COLD}-0")
    return log_dir


def _take_away(folder: Path, directory: Path) -> list[tuple[Path, Path]]:
    """Take away rolled files like the broker's retention; they can be put back for comparison."""
    kept = directory / "taken-away"
    kept.mkdir()
    moved = []
    for path in folder.glob(f"{0:020}.*"):
        moved.append((kept / path.name, path))
        path.rename(kept / path.name)
    return moved


def _loop(rlm: ServiceProcess, name: TopicIdPartition, interval_s: float) -> ReadLoop:
    return ReadLoop(rlm.address, name, 0, interval_s)
