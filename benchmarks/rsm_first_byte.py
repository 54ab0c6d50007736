"""Measure rsm_first_byte: the first byte of a 1 MiB fetch, against bare client plus empty call.

rsm_first_byte_verified measures the same with every read verified, against one read of 16.
"""

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.bare_client import BareClient
from benchmarks.deployment import ALWAYS, SAMPLED, deployed
from benchmarks.measure import MIB, QUICK, ROUNDS, Result, ratio
from benchmarks.rlmm.empty_rpc import running_empty_server
from benchmarks.segments import RandomSegment
from benchmarks.store import STORE
from services.api.remote_storage_manager import RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata

SIZE_BYTES = 64 * MIB
CALLS = 20 if QUICK else 200
US = 1e6


def run() -> Result:
    with (
        tempfile.TemporaryDirectory(prefix="sediment-bench-") as name,
        deployed(settings=SAMPLED) as services,
        running_empty_server(Path(name) / "empty") as empty_server,
    ):
        segment = RandomSegment(Path(name) / "segment.log", SIZE_BYTES).copied(services.rsm)
        bare = BareClient(services.s3_client(), services.bucket, services.part_size_bytes)
        key, empty_call = services.only_log_key(), empty_server.calls.caller(0)

        def fetch(start: int) -> float:
            return _first_byte_s(services.rsm, segment, start)

        def empty(_: int) -> float:
            began = time.perf_counter()
            empty_call()
            return time.perf_counter() - began

        def bare_first_byte(start: int) -> float:
            return bare.first_byte_s(key, start, MIB)

        for warm_up in (fetch, bare_first_byte, empty):
            _p50_us(warm_up)
        return ratio(
            "rsm_first_byte",
            ROUNDS,
            ("FetchLogSegment, first byte, p50, us", lambda: _p50_us(fetch)),
            (
                "bare client's first byte + empty RPC, p50 each, us",
                lambda: _p50_us(bare_first_byte) + _p50_us(empty),
            ),
            services.pids,
            {
                "fetch_bytes": MIB,
                "of_bytes": SIZE_BYTES,
                "calls_a_round": CALLS,
                **SAMPLED,
                "store": STORE,
            },
            {"empty-rpc": empty_server.pid},
        )


def run_verified() -> Result:
    with (
        tempfile.TemporaryDirectory(prefix="sediment-bench-") as name,
        deployed(settings=SAMPLED) as services,
        services.another_rsm(ALWAYS) as (verifying, pid),
    ):
        segment = RandomSegment(Path(name) / "segment.log", SIZE_BYTES).copied(services.rsm)

        def always(start: int) -> float:
            return _first_byte_s(verifying, segment, start)

        def sampled(start: int) -> float:
            return _first_byte_s(services.rsm, segment, start)

        for warm_up in (always, sampled):
            _p50_us(warm_up)
        return ratio(
            "rsm_first_byte_verified",
            ROUNDS,
            ("first byte, always verified, p50, us", lambda: _p50_us(always)),
            ("first byte, sampled, p50, us", lambda: _p50_us(sampled)),
            {"rsm": pid},
            {"fetch_bytes": MIB, "calls_a_round": CALLS, "store": STORE},
            services.pids,
        )


def _first_byte_s(
    rsm: RemoteStorageManager, segment: RemoteLogSegmentMetadata, start: int
) -> float:
    began = time.perf_counter()
    chunks = rsm.fetch_log_segment(segment, start, start + MIB - 1)
    next(chunks)
    elapsed_s = time.perf_counter() - began
    for _ in chunks:
        pass
    return elapsed_s


def _p50_us(first_byte_s: Callable[[int], float]) -> float:
    """Return the median of CALLS reads of a mebibyte, each from a random allowed position."""
    starts = [MIB * random.randrange(SIZE_BYTES // MIB) for _ in range(CALLS)]
    return statistics.median(first_byte_s(start) for start in starts) * US
