"""Move the clock: of one object, or of a world whose RSM and RLM run with movable clocks."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pytest

from services.api.remote_log_metadata_manager import PartitionLeadership
from services.local.process import ProcessError
from services.local.seaweedfs import S3Endpoint
from services.local.stack import ServiceProcess, rlm_settings, rsm_settings
from services.rsm.active_copies import Waiter
from tests.harness import moved_clock_process
from tests.harness.eventually import eventually
from tests.harness.synthetic_log import make_log_dir, roll_segment
from tests.harness.world import COPY_LEASE_MS, FINISHED, World

SEGMENT_BYTES = 128 * 1024
PARTITIONS, SEGMENTS = 2, 3
BROKER = 1
EXPIRATION = "expiration"


class Clock:
    """A clock that a test moves, as does its `waiter`, which takes no time."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s
        self.waiter = Waiter(self, self.move)

    def __call__(self) -> float:
        return self.now_s

    def move(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass
class WrongClock:
    """A world whose RSM and RLM run on hosts whose clocks a test can move."""

    world: World
    rlm: ServiceProcess
    _directory: Path

    def is_off_by(self, seconds: int, service: str = "rlm") -> None:
        # In one step, so that a reader gets the old or the new value.
        fresh = self._directory / "clock.new"
        fresh.write_text(str(seconds))
        fresh.rename(_clock(self._directory, service))

    def roll(self) -> None:
        """Roll one more segment in each partition."""
        for folder in self.world.log_dir.glob("bench-*"):
            roll_segment(folder, max(int(log.stem) for log in folder.glob("*.log")), SEGMENT_BYTES)
            _let_time_pass(folder)

    def is_shipped(self) -> bool:
        rows = self.world.rows()
        expected = sum(map(len, self.world.local_segments().values()))
        return len(rows) == expected and {row.state for row in rows} == {FINISHED}

    def passes(self, kind: str, times: int = 3) -> None:
        """Wait until RLMM has received this call so many more times."""
        already = self._asked(kind)
        eventually(lambda: self._asked(kind) >= already + times, 60_000)

    def keeps_retention(self, *kinds: str) -> None:
        """Wait until RLM has had a good pass of each kind over each partition, begun after this."""
        for kind in kinds:
            for _ in range(2):  # the first is only known to have ended since
                eventually(partial(self._has_passed, kind, time.monotonic()), 60_000)

    def _has_passed(self, kind: str, since_s: float) -> bool:
        at_most_s = time.monotonic() - since_s
        name = "sediment_rlm_seconds_since_last_success"
        ages = _values(self.rlm, name, f'pool="{kind}"', without='topic=""')
        return len(ages) == PARTITIONS and max(ages) < at_most_s

    def _asked(self, kind: str) -> int:
        counts = _values(self.world.rlmm, "sediment_rpc_seconds_count", kind)
        return int(sum(counts))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _values(
    service: ServiceProcess, metric: str, label: str = "", without: str = "no such label"
) -> list[float]:
    with urlopen(f"http://{service.announcement.metrics}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    lines = [line for line in lines if line.startswith(metric) and without not in line]
    found = [line for line in lines if label in line]
    return [float(line.rpartition(" ")[2]) for line in found]


def _let_time_pass(folder: Path) -> None:
    """Wait until the folder's modification time advances.

    The files' times are right and RLM's clock is not, unlike on any real host: to RLM a folder that
    changes again within the same instant may seem to have rested for long.
    """
    before = folder.stat().st_mtime_ns

    def is_later() -> bool:
        poke = folder / "touched"
        poke.touch()
        poke.unlink()
        return folder.stat().st_mtime_ns > before

    eventually(is_later)


@pytest.fixture
def wrong(deployment: World, s3: S3Endpoint, tmp_path: Path) -> Iterator[WrongClock]:
    """Provide a world whose RLM is not started yet and whose clocks are right."""
    for service in ("rsm", "rlm"):
        _clock(tmp_path, service).write_text("0")
    log_dir = tmp_path / "log"
    make_log_dir(log_dir, PARTITIONS, SEGMENTS, SEGMENT_BYTES)
    with ExitStack() as ending:
        rsm = ServiceProcess(
            "rsm",
            rsm_settings(s3, deployment.bucket, ""),
            tmp_path / "rsm",
            moved_clock_process.command(_clock(tmp_path, "rsm"), "services.rsm"),
        )
        rsm.start()
        ending.callback(rsm.kill)
        world = replace(deployment, rsm=rsm, log_dir=log_dir)
        settings = rlm_settings(rsm.address, world.rlmm.address, [log_dir], 200) | {
            "RLM_COPY_LEASE_MS": str(COPY_LEASE_MS),
            "RLM_REMOTE_PARTITION_REMOVER_TASK_INTERVAL_MS": "200",
        }
        command = moved_clock_process.command(_clock(tmp_path, "rlm"), "services.rlm")
        rlm = ServiceProcess("rlm", settings, tmp_path / "rlm", command)
        ending.callback(_end, rlm)
        with world.metadata() as rlmm:
            leaders = [PartitionLeadership(name, 0) for name in world.local_segments()]
            rlmm.on_partition_leadership_changes(leaders, [], BROKER)
        yield WrongClock(world, rlm, tmp_path)


def _clock(directory: Path, service: str) -> Path:
    return directory / f"clock-of-{service}"


def _end(rlm: ServiceProcess) -> None:
    with suppress(ProcessError):  # never started
        rlm.kill()
