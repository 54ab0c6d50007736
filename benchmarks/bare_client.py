"""Provide the fair opponent: the minio SDK alone, which signs payloads as RSM does over plain
HTTP.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from minio import Minio

from benchmarks.measure import MIB, mib_per_s

THREADS = (1, 2, 4, 8)


@dataclass(frozen=True)
class BareClient:
    """Uploads files to a bucket, and reads its objects; `part_size_bytes` is RSM's."""

    client: Minio
    bucket: str
    part_size_bytes: int

    def upload(self, path: Path, threads: int) -> None:
        """Upload one file, its parts in parallel."""
        key = f"bare/{uuid4().hex}"
        self.client.fput_object(
            self.bucket,
            key,
            str(path),
            part_size=self.part_size_bytes,
            num_parallel_uploads=threads,
        )
        self.client.remove_object(self.bucket, key)

    def upload_all(self, paths: Sequence[Path], threads: int) -> None:
        """Upload many files, each in one thread."""
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda path: self.upload(path, 1), paths))

    def fetch(self, key: str, start: int, size_bytes: int) -> None:
        """Send one ranged GET, and read its response to the end."""
        response = self.client.get_object(self.bucket, key, start, size_bytes)
        try:
            while response.read(MIB):
                pass
        finally:
            response.close()
            response.release_conn()

    def first_byte_s(self, key: str, start: int, size_bytes: int) -> float:
        """Return the time of one ranged GET to its first byte; the other bytes are read after
        that.
        """
        began = time.perf_counter()
        response = self.client.get_object(self.bucket, key, start, size_bytes)
        try:
            response.read(1)
            elapsed_s = time.perf_counter() - began
            while response.read(MIB):
                pass
        finally:
            response.close()
            response.release_conn()
        return elapsed_s

    def best_threads(self, path: Path) -> int:
        """Return the best number of threads for one file.

        Each candidate is measured once, after a warm-up.
        """
        self.upload(path, 1)
        size = path.stat().st_size
        speeds = {n: mib_per_s(size, lambda n=n: self.upload(path, n)) for n in THREADS}  # type: ignore[misc]
        return max(speeds, key=lambda n: speeds[n])

    def best_threads_for_all(self, paths: Sequence[Path]) -> int:
        """Return the best number of threads for many files."""
        size = sum(path.stat().st_size for path in paths)
        speeds = {n: mib_per_s(size, lambda n=n: self.upload_all(paths, n)) for n in THREADS}  # type: ignore[misc]
        return max(speeds, key=lambda n: speeds[n])
