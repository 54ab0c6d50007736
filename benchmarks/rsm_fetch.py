"""rsm_fetch: FetchLogSegment of 64 MiB over gRPC, against the bare client's ranged GET."""

import tempfile
from pathlib import Path

from benchmarks.bare_client import BareClient
from benchmarks.deployment import deployed
from benchmarks.measure import MIB, ROUNDS, Result, mib_per_s, ratio
from benchmarks.segments import RandomSegment
from benchmarks.store import STORE

SIZE_BYTES = 64 * MIB


def run() -> Result:
    with tempfile.TemporaryDirectory(prefix="sediment-bench-") as name, deployed() as services:
        segment = RandomSegment(Path(name) / "segment.log", SIZE_BYTES).copied(services.rsm)
        bare = BareClient(services.s3_client(), services.bucket, services.part_size_bytes)
        key = services.only_log_key()

        def fetch() -> None:
            received = sum(map(len, services.rsm.fetch_log_segment(segment, 0, SIZE_BYTES - 1)))
            if received != SIZE_BYTES:
                raise RuntimeError(f"{received} of {SIZE_BYTES} bytes came")

        fetch()
        bare.fetch(key, 0, SIZE_BYTES)
        return ratio(
            "rsm_fetch",
            ROUNDS,
            ("FetchLogSegment, MiB/s", lambda: mib_per_s(SIZE_BYTES, fetch)),
            (
                "bare client's ranged GET, MiB/s",
                lambda: mib_per_s(SIZE_BYTES, lambda: bare.fetch(key, 0, SIZE_BYTES)),
            ),
            services.pids,
            {
                "range_bytes": SIZE_BYTES,
                "verify_reads": services.rsm_default("verify_reads"),
                "bare_client": "one GET, read in MiB, thrown away",
                "store": STORE,
            },
        )
