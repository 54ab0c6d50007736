"""A rolled segment's largest timestamp, without reading the segment."""

import os

from services.rlm.kafka_log.indexes import TIME_ENTRY
from services.rlm.kafka_log.partition_dir import LocalSegment


def largest_timestamp_ms(segment: LocalSegment) -> int | None:
    """The largest timestamp of a rolled segment's records, with which its time index ends; where
    that does not say, when the log was last written to. None: the segment cannot be read.

    It is believed unseen: who copies the segment reads it through, and finds out.

    Source: LogSegment.largestTimestamp.
    """
    try:
        return _last_entry_ms(segment) or segment.log_path.stat().st_mtime_ns // 1_000_000
    except OSError:
        return None


def _last_entry_ms(segment: LocalSegment) -> int | None:
    """None: no index, not whole entries, or an end that was never written (zeros)."""
    try:
        fd = os.open(segment.file(".timeindex"), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        size_bytes = os.fstat(fd).st_size
        at = size_bytes - TIME_ENTRY.size
        data = os.pread(fd, TIME_ENTRY.size, at) if at >= 0 else b""
    finally:
        os.close(fd)
    if len(data) < TIME_ENTRY.size or size_bytes % TIME_ENTRY.size:
        return None
    timestamp_ms = int(TIME_ENTRY.unpack(data)[0])
    return timestamp_ms if timestamp_ms > 0 else None
