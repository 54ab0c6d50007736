"""Check and rebuild the index files of a local segment."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from services.api.remote_log_manager import Problem, ProblemKind
from services.api.remote_storage_manager import SegmentFile
from services.api.validation import INT64_MAX
from services.common.bounded_file import open_regular
from services.records.batches import Batch
from services.records.index_files import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    OffsetIndex,
    check_time_index,
    first_offset_since,
    parse_aborted_txns,
)
from services.records.segment_indexes import IndexBuilder, Transactions
from services.rlm.kafka_log.partition_dir import LocalSegment, read_side_file

INDEX_SUFFIXES = {
    SegmentFile.OFFSET: ".index",
    SegmentFile.TIMESTAMP: ".timeindex",
    SegmentFile.TRANSACTION: ".txnindex",
}

_OFFSET_FIELDS = ((SegmentFile.OFFSET, OFFSET_ENTRY, 0), (SegmentFile.TIMESTAMP, TIME_ENTRY, 1))


def largest_timestamp_ms(segment: LocalSegment) -> int | None:
    """Read the largest timestamp of a rolled segment; None if the segment cannot be read.

    It comes from the time index, or is the log's mtime if the index has none. The value is not
    checked here; the copy of the segment checks it.

    Source: LogSegment.largestTimestamp.
    """
    try:
        return last_indexed_ms(segment) or segment.log_path.stat().st_mtime_ns // 1_000_000
    except OSError:
        return None


def last_indexed_ms(segment: LocalSegment) -> int | None:
    """Read the last timestamp of the time index, which is a rolled segment's largest.

    None without an index, or if its end is incomplete or zeros.
    """
    try:
        fd = open_regular(segment.file(".timeindex"))
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


def offset_before(segment: LocalSegment, time_ms: int) -> int:
    """Return an offset of the segment before which every record is older than `time_ms`."""
    data = read_side_file(segment.file(".timeindex")) or b""
    # An active segment's index is preallocated: entries of zeros at its end are unused.
    used = data[: len(data) - len(data) % TIME_ENTRY.size].rstrip(b"\0")
    whole = data[: -(-len(used) // TIME_ENTRY.size) * TIME_ENTRY.size]
    last = segment.end_offset if segment.is_rolled else INT64_MAX
    return first_offset_since(whole, segment.base_offset, last, time_ms)


class SegmentIndexes:
    """Compare a segment's index files with its batches, given in order."""

    def __init__(self, segment: LocalSegment, transactions: Transactions) -> None:
        self._segment = segment
        self._on_disk = {f: read_side_file(segment.file(s)) for f, s in INDEX_SUFFIXES.items()}
        self._built = IndexBuilder(segment.base_offset, transactions)
        self._offsets = _OffsetIndexCheck(self._on_disk[SegmentFile.OFFSET], segment)
        self._rebuilt: list[Problem] = []

    @property
    def max_timestamp_ms(self) -> int:
        return self._built.max_timestamp_ms

    @property
    def last_indexed_offset(self) -> int:
        """Return the greatest offset in the index files; -1 if they have none, or are damaged."""
        found = [-1]
        for file, entry, field in _OFFSET_FIELDS:
            data = self._on_disk[file] or b""
            if len(data) % entry.size == 0:
                found += [fields[field] for fields in entry.iter_unpack(data)]
        return self._segment.base_offset + max(found) if max(found) >= 0 else -1

    def observe(self, batch: Batch) -> None:
        self._built.observe(batch)
        self._offsets.observe(batch)

    def finish(self) -> tuple[dict[SegmentFile, bytes], tuple[Problem, ...]]:
        """Return the index files, and an INDEX_REBUILT for each one that was rebuilt."""
        transactions = self._built.transaction_index()
        files = {
            SegmentFile.OFFSET: self._choose(
                SegmentFile.OFFSET, self._built.offset_index(), lambda _: self._offsets.finish()
            ),
            SegmentFile.TIMESTAMP: self._choose(
                SegmentFile.TIMESTAMP, self._built.time_index(), self._check_times
            ),
        }
        if transactions or self._on_disk[SegmentFile.TRANSACTION] is not None:
            files[SegmentFile.TRANSACTION] = self._choose(
                SegmentFile.TRANSACTION, transactions, self._check_transactions
            )
        return files, tuple(self._rebuilt)

    def _choose(self, file: SegmentFile, rebuilt: bytes, check: Callable[[bytes], None]) -> bytes:
        data = self._on_disk[file]
        try:
            if data is None or (rebuilt and not data):
                raise ValueError("missing or empty")
            check(data)
        except ValueError as e:
            self._rebuilt.append(_rebuilt_problem(self._segment.file(INDEX_SUFFIXES[file]), str(e)))
            return rebuilt
        return data

    def _check_times(self, data: bytes) -> None:
        base, end = self._segment.base_offset, self._segment.end_offset
        check_time_index(data, base, end, self.max_timestamp_ms)

    def _check_transactions(self, data: bytes) -> None:
        found = parse_aborted_txns(data)
        if found != self._built.aborted:
            raise ValueError(f"{len(found)} aborted transactions, not those of the segment")


class _OffsetIndexCheck:
    """Check that each entry has the position and the last offset of a batch."""

    def __init__(self, data: bytes | None, segment: LocalSegment) -> None:
        self._error: ValueError | None = None
        self._entries: Iterator[tuple[int, int]] = iter(())
        try:
            self._entries = iter(OffsetIndex(data or b"", segment.base_offset, segment.size_bytes))
        except ValueError as e:
            self._error = e
        self._next: tuple[int, int] | None = next(self._entries, None)

    def observe(self, batch: Batch) -> None:
        if self._next is None or batch.position < self._next[1]:
            return
        if self._next != (batch.last_offset, batch.position):
            self._error = ValueError(f"no batch that ends at {self._next[0]} at {self._next[1]}")
            self._next = None
        else:
            self._next = next(self._entries, None)

    def finish(self) -> None:
        if self._error is None and self._next is not None:
            self._error = ValueError(f"no batch at {self._next[1]}")
        if self._error is not None:
            raise self._error


def _rebuilt_problem(path: Path, reason: str) -> Problem:
    message = f"index rebuilt from the segment: {reason}"
    return Problem(ProblemKind.INDEX_REBUILT, str(path), message)
