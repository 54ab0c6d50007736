"""Measure rlmm_ready: from start to ready with a long history, against none."""

import time

from benchmarks.measure import ROUNDS, Result, ratio
from benchmarks.rlmm.database import databases, running_rlmm
from benchmarks.rlmm.setting import LARGE, conditions


def run() -> Result:
    long, empty = databases().history(LARGE), databases().empty()
    _start_s(long), _start_s(empty)  # the programs are in memory for both
    return ratio(
        "rlmm_ready",
        ROUNDS,
        (f"{LARGE.total_segments()} segments, s", lambda: _start_s(long)),
        ("no segments, s", lambda: _start_s(empty)),
        {},
        conditions(LARGE),
    )


def _start_s(database_url: str) -> float:
    started = time.perf_counter()
    with running_rlmm(database_url):
        return time.perf_counter() - started
