"""Measure rlm_ship: a log directory to COPY_SEGMENT_FINISHED, against the bare client.

Both sides send the same files.
"""

import tempfile
from pathlib import Path

from benchmarks.bare_client import BareClient
from benchmarks.deployment import deployed
from benchmarks.measure import MIB, Result, mib_per_s, ratio
from benchmarks.store import STORE
from services.rlm.copy.ship import ShipOutcome, ship
from tests.harness.synthetic_log import make_log_dir, name_anew

PARTITIONS = 8
SEGMENTS = 2
SEGMENT_BYTES = 32 * MIB
ROUNDS = 9


def run() -> Result:
    with tempfile.TemporaryDirectory(prefix="sediment-bench-") as name, deployed() as services:
        log_dir = Path(name) / "log"
        make_log_dir(log_dir, PARTITIONS, SEGMENTS, SEGMENT_BYTES)
        suffixes = (".log", ".index", ".timeindex", ".snapshot")
        files = [path for path in log_dir.rglob("*") if path.suffix in suffixes]
        files = [path for path in files if path.stat().st_size]
        size = sum(path.stat().st_size for path in files)
        bare = BareClient(services.s3_client(), services.bucket, services.part_size_bytes)
        threads = bare.best_threads_for_all(files)

        def ship_all() -> float:
            name_anew(log_dir)
            reports = []

            def once() -> None:
                reports.append(ship([log_dir], services.rsm, services.rlmm))

            speed = mib_per_s(size, once)
            if reports[0].outcome is not ShipOutcome.DONE:
                raise RuntimeError(f"not everything was shipped: {reports[0]}")
            services.empty_bucket()
            return speed

        ship_all()
        return ratio(
            "rlm_ship",
            ROUNDS,
            ("ship, MiB/s", ship_all),
            (
                f"bare client, {threads} file(s) at once, MiB/s",
                lambda: mib_per_s(size, lambda: bare.upload_all(files, threads)),
            ),
            services.pids,
            {
                "partitions": PARTITIONS,
                "segments": PARTITIONS * SEGMENTS,
                "segment_bytes": SEGMENT_BYTES,
                "part_size_bytes": services.part_size_bytes,
                "payload": "signed (sha256) on both sides, plain HTTP",
                "store": STORE,
                "fsync, synchronous_commit": services.durability(),
                "rlm": "in the benchmark's process, as `sediment ship` runs it",
            },
        )
