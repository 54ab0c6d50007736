"""Provide the S3 store of the benchmarks: SeaweedFS, or real MinIO if BENCH_S3 selects it."""

import os
from pathlib import Path

from services.local.seaweedfs import S3Server, SeaweedFS
from tests.harness.minio import MinioServer

_SERVERS: dict[str, type[SeaweedFS | MinioServer]] = {
    "SeaweedFS": SeaweedFS,
    "MinIO": MinioServer,
}
STORE = os.environ.get("BENCH_S3", "SeaweedFS")
if STORE not in _SERVERS:
    raise SystemExit(f"BENCH_S3 is {STORE!r}: must be one of {', '.join(_SERVERS)}")


def s3_server(directory: Path) -> S3Server:
    """Return the store of this run, not started yet, with its data in `directory`."""
    return _SERVERS[STORE](directory)
