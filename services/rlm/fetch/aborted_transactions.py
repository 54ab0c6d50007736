"""Find the aborted transactions of a read_committed answer in the indexes of tier and log."""

from collections.abc import Iterable, Iterator
from functools import partial

from services.api.remote_log_manager import AbortedTransaction
from services.api.validation import INT64_MAX
from services.records.index_files import ABORTED_TXN_BYTES, AbortedTxn, parse_aborted_txns
from services.rlm.fetch.errors import DamagedLogError
from services.rlm.fetch.partition_view import PartitionView
from services.rlm.kafka_log.local_log import LocalLog
from services.rlm.kafka_log.partition_dir import (
    LocalSegment,
    SegmentVanishedError,
    read_side_file,
)


class AbortedTransactions:
    """Find the aborted transactions with records at or behind an offset, part by part. Single use.

    A transaction is in the index of the segment that has its end, perhaps far behind its records:
    the search goes on until an entry shows that all earlier transactions have ended, or to the end
    of the log.

    Source: RemoteLogManager.collectAbortedTransactions, UnifiedLog.collectAbortedTransactions.

    Args:
        entries: as IndexEntries yields them.
    """

    def __init__(self, entries: Iterable[AbortedTxn], first_offset: int) -> None:
        self._first_offset = first_offset
        self._entries = iter(entries)
        self._found: list[AbortedTxn] = []
        self._complete_below = 0

    def below(self, end_offset: int) -> tuple[AbortedTransaction, ...]:
        """Return those that began below `end_offset` and that no earlier call returned.

        Raises:
            DamagedLogError, LogFileError: if a local index is damaged or unreadable.
            SegmentVanishedError: if the broker deleted a segment meanwhile; begin again.
            RemoteStorageError: if the tier's indexes cannot be read.
        """
        self.search(end_offset)
        due = [entry for entry in self._found if entry.first_offset < end_offset]
        self._found = [entry for entry in self._found if entry.first_offset >= end_offset]
        # An index of the tier and one of the log may have the same entry; it was returned then.
        self._first_offset = end_offset
        return tuple(sorted({AbortedTransaction(e.first_offset, e.producer_id) for e in due}))

    def is_complete(self, end_offset: int) -> bool:
        """Return whether all that began below `end_offset` are found."""
        return self._complete_below >= end_offset

    def search(self, end_offset: int) -> None:
        """Read the indexes until all that began below `end_offset` are found; raises as `below`."""
        while not self.is_complete(end_offset):
            entry = next(self._entries, None)
            if entry is None:
                self._complete_below = INT64_MAX
                break
            self._complete_below = max(self._complete_below, entry.last_stable_offset)
            if entry.last_offset >= self._first_offset:
                self._found.append(entry)


class IndexEntries:
    """Read the entries of the tier's indexes below the local log, then those of the local ones.

    Iterate once. Raises as AbortedTransactions.below.

    Attributes:
        is_changed: RLMM answered for another revision of the partition than that of the view.
    """

    def __init__(self, view: PartitionView, first_offset: int) -> None:
        self._view = view
        self._first_offset = first_offset
        self.is_changed = False

    def __iter__(self) -> Iterator[AbortedTxn]:
        log = self._view.log
        local_start = INT64_MAX if log is None else log.segments[0].base_offset
        if self._first_offset < local_start:
            self._view.require_complete_tier()
            yield from self._remote_entries(local_start)
        if log is not None:
            yield from _local_entries(log, self._first_offset)

    def _remote_entries(self, end_offset: int) -> Iterator[AbortedTxn]:
        view, offset = self._view, self._first_offset
        remote, name = view.remote, view.partition.topic_id_partition
        lineage, revision = view.lineage(), view.tier.revision
        end_offset = min(end_offset, view.tier.end_offset)
        while offset < end_offset:
            find = partial(remote.aborted_transactions, name, lineage, offset, end_offset, revision)
            found = view.calls.call(find)
            self.is_changed |= found.is_changed
            yield from found.entries
            if found.next_offset is None:
                return
            offset = found.next_offset


def _local_entries(log: LocalLog, offset: int) -> Iterator[AbortedTxn]:
    for segment in log.segments:
        if segment.base_offset >= log.high_watermark:
            return  # What is read has ended below.
        if not segment.is_rolled or segment.end_offset >= offset:
            yield from _entries_of(segment)


def _entries_of(segment: LocalSegment) -> list[AbortedTxn]:
    path = segment.file(".txnindex")
    data = read_side_file(path)
    if data is None:
        # Kafka renames the log of a deleted segment first.
        if not segment.log_path.exists():
            raise SegmentVanishedError(f"{segment.log_path}: deleted during a read")
        return []
    if not segment.is_rolled:
        # The broker may be writing the last entry.
        data = data[: len(data) - len(data) % ABORTED_TXN_BYTES]
    try:
        return parse_aborted_txns(data)
    except ValueError as e:
        raise DamagedLogError(
            f"{path}: transaction index: {e}; a broker builds it again if it is "
            "deleted while the broker is stopped"
        ) from e
