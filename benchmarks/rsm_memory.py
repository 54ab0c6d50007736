"""Measure rsm_memory: the growth of RSM's process while it receives the largest segment."""

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import replace

import psutil
from crc32c import crc32c

from benchmarks.deployment import Deployment, deployed
from benchmarks.measure import MIB, QUICK, Result, Side, counted_rounds, peak_rss_bytes
from benchmarks.rsm_transformed import AES, ZSTD, both, json_chunks
from benchmarks.segments import generated_log, segment_data, segment_metadata
from benchmarks.store import STORE
from services.api.segments import RemoteLogSegmentMetadata
from services.api.validation import INT32_MAX
from services.rsm.settings import UPLOAD_THREADS

SIZE_BYTES = 256 * MIB if QUICK else INT32_MAX
ROUNDS = 1 if QUICK else 3


def run() -> Result:
    samples, peaks, idles = [], [], []
    in_flight_bytes = 0
    for number in counted_rounds("rsm_memory", ROUNDS):
        # A process of its own each time: a peak never falls.
        with deployed() as services:
            pid = services.pids["rsm"]
            idle = psutil.Process(pid).memory_info().rss
            digest = Digest()
            metadata = _copy(services, digest)
            peak = peak_rss_bytes(pid)
            in_flight_bytes = _in_flight_bytes(services)
            if number == 0:
                _require_same_bytes(services, metadata, digest)
        idles.append(idle / MIB)
        peaks.append(peak / MIB)
        samples.append((peak - idle - in_flight_bytes) / MIB)
    return _result("rsm_memory", samples, peaks, idles, in_flight_bytes)


def run_transformed() -> Result:
    """Copy JSON that is compressed and encrypted; reads of it are measured by rsm_aes_fetch."""
    samples, peaks, idles = [], [], []
    in_flight_bytes = 0
    for _ in counted_rounds("rsm_memory_transformed", ROUNDS):
        with both(f"{ZSTD}\n{AES}") as rsms:
            idle = psutil.Process(rsms.other_pid).memory_info().rss
            log = json_chunks(SIZE_BYTES)
            rsms.other.copy_log_segment_data(
                segment_metadata(SIZE_BYTES), segment_data(SIZE_BYTES, log)
            )
            peak = peak_rss_bytes(rsms.other_pid)
            in_flight_bytes = _in_flight_bytes(rsms.services)
        idles.append(idle / MIB)
        peaks.append(peak / MIB)
        samples.append((peak - idle - in_flight_bytes) / MIB)
    return _result("rsm_memory_transformed", samples, peaks, idles, in_flight_bytes)


def _result(
    name: str,
    samples: list[float],
    peaks: list[float],
    idles: list[float],
    in_flight_bytes: int,
) -> Result:
    return Result(
        name,
        "MiB of RSM's process over idle and its parts in flight, at its peak",
        statistics.median(samples),
        samples,
        Side("at its peak, MiB", peaks),
        Side("idle, MiB", idles),
        {
            "segment_bytes": SIZE_BYTES,
            "parts_in_flight_bytes": in_flight_bytes,
            "rounds": ROUNDS,
            "store": STORE,
        },
    )


class Digest:
    """Computes the crc32c of the bytes that pass."""

    def __init__(self) -> None:
        self.crc32c = 0

    def of(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self.crc32c = crc32c(chunk, self.crc32c)
            yield chunk


def _copy(services: Deployment, digest: Digest) -> RemoteLogSegmentMetadata:
    metadata = segment_metadata(SIZE_BYTES)
    data = segment_data(SIZE_BYTES, digest.of(generated_log(SIZE_BYTES)))
    answer = services.rsm.copy_log_segment_data(metadata, data)
    return replace(metadata, custom_metadata=answer)


def _in_flight_bytes(services: Deployment) -> int:
    """Return the bytes in flight of one copy: a part for each sending thread, and one being
    filled.
    """
    return (UPLOAD_THREADS + 1) * services.part_size_bytes


def _require_same_bytes(
    services: Deployment, metadata: RemoteLogSegmentMetadata, digest: Digest
) -> None:
    fetched = Digest()
    size = sum(map(len, fetched.of(map(bytes, services.rsm.fetch_log_segment(metadata, 0)))))
    if (size, fetched.crc32c) != (SIZE_BYTES, digest.crc32c):
        raise RuntimeError(f"{size} bytes came back, or others than were sent")
