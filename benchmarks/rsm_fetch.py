"""Measure rsm_fetch: FetchLogSegment of 64 MiB over gRPC, against the bare client's ranged GET.

rsm_fetch_verified measures the same with every read verified, against one read of 16.
"""

import tempfile
from pathlib import Path

from benchmarks.bare_client import BareClient
from benchmarks.deployment import ALWAYS, SAMPLED, deployed
from benchmarks.measure import MIB, ROUNDS, Result, mib_per_s, ratio
from benchmarks.segments import RandomSegment
from benchmarks.store import STORE
from services.api.remote_storage_manager import RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata

SIZE_BYTES = 64 * MIB


def run() -> Result:
    with (
        tempfile.TemporaryDirectory(prefix="sediment-bench-") as name,
        deployed(settings=SAMPLED) as services,
    ):
        segment = RandomSegment(Path(name) / "segment.log", SIZE_BYTES).copied(services.rsm)
        bare = BareClient(services.s3_client(), services.bucket, services.part_size_bytes)
        key = services.only_log_key()
        _fetch(services.rsm, segment)
        bare.fetch(key, 0, SIZE_BYTES)
        return ratio(
            "rsm_fetch",
            ROUNDS,
            ("FetchLogSegment, MiB/s", lambda: _mib_per_s(services.rsm, segment)),
            (
                "bare client's ranged GET, MiB/s",
                lambda: mib_per_s(SIZE_BYTES, lambda: bare.fetch(key, 0, SIZE_BYTES)),
            ),
            services.pids,
            {
                "range_bytes": SIZE_BYTES,
                **SAMPLED,
                "bare_client": "one GET, read in MiB, thrown away",
                "store": STORE,
            },
        )


def run_verified() -> Result:
    with (
        tempfile.TemporaryDirectory(prefix="sediment-bench-") as name,
        deployed(settings=SAMPLED) as services,
        services.another_rsm(ALWAYS) as (verifying, pid),
    ):
        segment = RandomSegment(Path(name) / "segment.log", SIZE_BYTES).copied(services.rsm)
        for rsm in (services.rsm, verifying):
            _fetch(rsm, segment)
        return ratio(
            "rsm_fetch_verified",
            ROUNDS,
            ("FetchLogSegment, always verified, MiB/s", lambda: _mib_per_s(verifying, segment)),
            ("FetchLogSegment, sampled, MiB/s", lambda: _mib_per_s(services.rsm, segment)),
            {"rsm": pid},
            {"range_bytes": SIZE_BYTES, "store": STORE},
            services.pids,
        )


def _mib_per_s(rsm: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> float:
    return mib_per_s(SIZE_BYTES, lambda: _fetch(rsm, segment))


def _fetch(rsm: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> None:
    received = sum(map(len, rsm.fetch_log_segment(segment, 0, SIZE_BYTES - 1)))
    if received != SIZE_BYTES:
        raise RuntimeError(f"{received} of {SIZE_BYTES} bytes came")
