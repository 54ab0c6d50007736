"""Measure rsm_copy: CopyLogSegmentData of one segment over gRPC, against the bare client."""

import tempfile
from pathlib import Path

from benchmarks.bare_client import BareClient
from benchmarks.deployment import deployed
from benchmarks.measure import MIB, ROUNDS, Result, mib_per_s, ratio
from benchmarks.segments import RandomSegment
from benchmarks.store import STORE

SIZE_BYTES = 256 * MIB


def run() -> Result:
    with tempfile.TemporaryDirectory(prefix="sediment-bench-") as name, deployed() as services:
        segment = RandomSegment(Path(name) / "segment.log", SIZE_BYTES)
        bare = BareClient(services.s3_client(), services.bucket, services.part_size_bytes)
        threads = bare.best_threads(segment.path)

        def copy() -> float:
            metadata = segment.metadata()
            speed = mib_per_s(
                SIZE_BYTES,
                lambda: services.rsm.copy_log_segment_data(metadata, segment.data()),
            )
            services.rsm.delete_log_segment_data(metadata)
            return speed

        copy()
        return ratio(
            "rsm_copy",
            ROUNDS,
            ("CopyLogSegmentData, MiB/s", copy),
            (
                f"bare client, {threads} thread(s), MiB/s",
                lambda: mib_per_s(SIZE_BYTES, lambda: bare.upload(segment.path, threads)),
            ),
            services.pids,
            {
                "segment_bytes": SIZE_BYTES,
                "part_size_bytes": services.part_size_bytes,
                "payload": "signed (sha256) on both sides, plain HTTP",
                "store": STORE,
            },
            counted=services.counted("copy"),
        )
