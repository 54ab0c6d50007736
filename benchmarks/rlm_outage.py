"""Measure rlm_outage: the time until RLM has caught up after a minute without the store."""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

from benchmarks.deployment import Deployment, deployed
from benchmarks.measure import MIB, QUICK, Result, Side, counted_rounds
from benchmarks.store import STORE
from services.api.remote_log_manager import all_descriptions
from tests.harness.rolling_broker import RollingBroker
from tests.harness.synthetic_log import make_log_dir

OUTAGE_S = 10.0 if QUICK else 60.0
ROUNDS = 1 if QUICK else 3
PARTITIONS = 8
SEGMENT_BYTES = 4 * MIB
ROLLS_PER_S = 2.0
_PATIENCE_S = 600.0


def run() -> Result:
    caught_up, away = Side("caught up after, s"), Side("the store was away, s")
    for _ in counted_rounds("rlm_outage", ROUNDS):
        away_s, caught_up_s = _one_outage()
        away.samples.append(away_s)
        caught_up.samples.append(caught_up_s)
    samples = [a / b for a, b in zip(caught_up.samples, away.samples, strict=True)]
    return Result(
        "rlm_outage",
        "ratio",
        statistics.median(samples),
        samples,
        caught_up,
        away,
        {
            "partitions": PARTITIONS,
            "segment_bytes": SEGMENT_BYTES,
            "segments_rolled_per_s": ROLLS_PER_S,
            "rounds": ROUNDS,
            "store": STORE,
            "task_interval": "1 s, back-off as by default",
        },
    )


def _one_outage() -> tuple[float, float]:
    """Return the length of the outage, and the time after it until no segment waits because of
    it.
    """
    with tempfile.TemporaryDirectory(prefix="sediment-bench-") as name:
        log_dir = Path(name) / "log"
        make_log_dir(log_dir, PARTITIONS, 1, SEGMENT_BYTES)
        with deployed([log_dir]) as services:
            _wait_until(lambda: _lag_segments(services) == 0)
            with RollingBroker(_folders(log_dir), SEGMENT_BYTES, ROLLS_PER_S) as broker:
                services.stack.s3.kill()
                killed_s = time.monotonic()
                Event().wait(OUTAGE_S)
                services.stack.s3.start()
                back_s = time.monotonic()
                # Segments that are rolled from here on are copied beside the waiting ones.
                waiting = broker.rolled
                _wait_until(lambda: _copied(services) >= waiting + PARTITIONS)
                return back_s - killed_s, time.monotonic() - back_s


def _folders(log_dir: Path) -> list[Path]:
    return [path for path in log_dir.iterdir() if path.is_dir()]


def _lag_segments(services: Deployment) -> int:
    return sum(found.lag_segments for found in all_descriptions(services.rlm))


def _copied(services: Deployment) -> int:
    return sum(found.remote_segments for found in all_descriptions(services.rlm))


def _wait_until(is_so: Callable[[], bool]) -> None:
    due_s = time.monotonic() + _PATIENCE_S
    while not is_so():
        if time.monotonic() > due_s:
            raise RuntimeError(f"not caught up within {_PATIENCE_S:.0f} s")
        Event().wait(0.2)
