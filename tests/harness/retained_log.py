"""Provide a log for tests of retention, and hold Kafka's lock on a log directory."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from struct import pack
from typing import Any

from services.api.ids import TopicIdPartition
from services.common.retry import Backoff
from services.rlm.manager import BrokerRemoteLogManager, RlmLimits
from tests.harness.wrapper import Wrapper
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles, batch

HOUR_MS = 60 * 60 * 1000
ROLLED = 6
DEADLINE_S = 30.0
AT_ONCE = RlmLimits(interval_s=0.0, backoff=Backoff(initial_s=0.0))


def hourly_log(
    log_dir: Path, name: TopicIdPartition = NAME, rolled: int = ROLLED
) -> PartitionFiles:
    """Make a log with offsets 0 to 9, 10 to 19 ... rolled and five more active.

    Its epoch is 0, and 2 from offset 30 on. The first segment is `rolled` and a half hours old, the
    last rolled one an hour and a half.
    """
    files = PartitionFiles(log_dir, name)
    files.epochs((0, 0), (2, 30))
    now_ms = time.time_ns() // 1_000_000
    for number in range(rolled):
        base = 10 * number
        at_ms = now_ms - (rolled - number) * HOUR_MS - HOUR_MS // 2
        files.segment(base, [batch(base + n, 5, timestamp_ms=at_ms) for n in (0, 5)])
        files.file(base, ".timeindex").write_bytes(pack(">qi", at_ms, 4))
        files.snapshot(base + 10)
    files.segment(10 * rolled, [batch(10 * rolled, 5, timestamp_ms=now_ms)])
    return files


def keep_hours(hours: int) -> dict[str, str]:
    """Return settings that keep the last `hours` rolled segments of an hourly log."""
    return {"retention.ms": str((hours + 1) * HOUR_MS)}


def take_turns(rlm: BrokerRemoteLogManager, rounds: int = 1) -> None:
    """Poll the folders, copy, report and expire, in this order, each to its end."""
    for _ in range(rounds):
        for scheduler in (
            rlm.lanes.scan,
            rlm.lanes.copies,
            rlm.lanes.reports,
            rlm.lanes.expiration,
        ):
            scheduler.tick()
            assert scheduler.wait_idle(DEADLINE_S)


def expire(rlm: BrokerRemoteLogManager) -> None:
    rlm.lanes.expiration.tick()
    assert rlm.lanes.expiration.wait_idle(DEADLINE_S)


class Changed(Wrapper[object]):
    """A manager some of whose methods are replaced."""

    def __init__(self, manager: object, **methods: Callable[..., Any]) -> None:
        super().__init__(manager)
        self._methods = methods

    def __getattr__(self, name: str) -> Any:
        return self._methods.get(name) or super().__getattr__(name)


_PYTHON = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
try:
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    print("refused", flush=True)
else:
    print("locked", flush=True)
    sys.stdin.read()
"""
PYTHON_HOLDER = [sys.executable, "-c", _PYTHON]


@contextmanager
def other_process(command: Sequence[str], log_dir: Path) -> Iterator[str]:
    """Yield the process's output; if it got the lock, it holds the lock until the end."""
    with subprocess.Popen(
        [*command, str(log_dir / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()
