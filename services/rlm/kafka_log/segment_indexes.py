"""The three index files of a rolled segment: as the broker wrote them where they are right, else
rebuilt from the segment."""

from collections.abc import Callable, Iterator
from pathlib import Path

from services.api.remote_log_manager import Problem, ProblemKind
from services.api.remote_storage_manager import SegmentFile
from services.rlm.kafka_log.batches import Batch
from services.rlm.kafka_log.indexes import IndexBuilder, OffsetIndex, check_time_index
from services.rlm.kafka_log.partition_dir import LocalSegment, read_side_file
from services.rlm.kafka_log.transactions import AbortedTxn, parse_aborted_txns

_SUFFIXES = {
    SegmentFile.OFFSET: ".index",
    SegmentFile.TIMESTAMP: ".timeindex",
    SegmentFile.TRANSACTION: ".txnindex",
}


class SegmentIndexes:
    """Compares a segment's index files with its batches, which are to be given in order.

    Raises:
        LogFileError: UNREADABLE.
    """

    def __init__(self, segment: LocalSegment) -> None:
        self._segment = segment
        self._on_disk = {f: read_side_file(segment.file(s)) for f, s in _SUFFIXES.items()}
        self._built = IndexBuilder(segment.base_offset)
        self._aborted: list[AbortedTxn] = []
        self._offsets = _OffsetIndexCheck(self._on_disk[SegmentFile.OFFSET], segment)
        self._mended: list[Problem] = []

    @property
    def max_timestamp_ms(self) -> int:
        return self._built.max_timestamp_ms

    def observe(self, batch: Batch, aborted: AbortedTxn | None) -> None:
        """Take the next batch, and the transaction that it aborted."""
        self._built.observe(batch)
        self._offsets.observe(batch)
        if aborted is not None:
            self._aborted.append(aborted)

    def finish(self) -> tuple[dict[SegmentFile, bytes], tuple[Problem, ...]]:
        """The files, and one INDEX_REBUILT for each that is not the broker's own."""
        transactions = b"".join(entry.to_bytes() for entry in self._aborted)
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
        return files, tuple(self._mended)

    def _choose(self, file: SegmentFile, rebuilt: bytes, check: Callable[[bytes], None]) -> bytes:
        data = self._on_disk[file]
        try:
            if data is None or (rebuilt and not data):
                raise ValueError("missing or empty")
            check(data)
        except ValueError as e:
            self._mended.append(_rebuilt(self._segment.file(_SUFFIXES[file]), str(e)))
            return rebuilt
        return data

    def _check_times(self, data: bytes) -> None:
        base, end = self._segment.base_offset, self._segment.end_offset
        check_time_index(data, base, end, self.max_timestamp_ms)

    def _check_transactions(self, data: bytes) -> None:
        found = parse_aborted_txns(data)
        if found != self._aborted:
            raise ValueError(f"{len(found)} aborted transactions, not those of the segment")


class _OffsetIndexCheck:
    """Each entry must point at the first byte of a batch and bear its last offset."""

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


def _rebuilt(path: Path, reason: str) -> Problem:
    message = f"index rebuilt from the segment: {reason}"
    return Problem(ProblemKind.INDEX_REBUILT, str(path), message)
