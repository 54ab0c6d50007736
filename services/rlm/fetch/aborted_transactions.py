"""Find the aborted transactions of a read_committed answer in the indexes of tier and log."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from services.api.errors import RemoteResourceNotFoundError
from services.api.lineage import EpochRanges
from services.api.remote_log_manager import AbortedTransaction
from services.api.remote_storage_manager import IndexType
from services.api.segments import RemoteLogSegmentMetadata, SegmentLeaderEpoch
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
    """Find the aborted transactions with records from an offset on, part by part. Single use.

    A transaction is in the index of the segment that has its end, perhaps far after its records:
    the search goes on until an entry shows that all earlier transactions have ended, or to the end
    of the log.

    Source: RemoteLogManager.collectAbortedTransactions, UnifiedLog.collectAbortedTransactions.

    Args:
        entries: as IndexEntries yields them.
    """

    def __init__(self, entries: Iterable[AbortedTxn], first_offset: int) -> None:
        self._first_offset = first_offset
        self._entries = iter(entries)
        self._unreturned: list[AbortedTxn] = []
        self._complete_below = 0

    def below(self, end_offset: int) -> tuple[AbortedTransaction, ...]:
        """Return those that began below `end_offset` and that no earlier call returned.

        Raises:
            DamagedLogError, LogFileError: if a local index is damaged or unreadable.
            SegmentVanishedError: if the broker deleted a segment meanwhile; begin again.
            RemoteStorageError: if the tier's indexes cannot be read.
        """
        self.search(end_offset)
        due = [entry for entry in self._unreturned if entry.first_offset < end_offset]
        self._unreturned = [entry for entry in self._unreturned if entry.first_offset >= end_offset]
        # An index of the tier and one of the log may have the same entry; it was returned then.
        self._first_offset = end_offset
        return tuple(sorted({AbortedTransaction(e.first_offset, e.producer_id) for e in due}))

    def search(self, end_offset: int) -> None:
        """Read the indexes until all that began below `end_offset` are found; raises as `below`."""
        while self._complete_below < end_offset:
            entry = next(self._entries, None)
            if entry is None:
                self._complete_below = INT64_MAX
                break
            self._complete_below = max(self._complete_below, entry.last_stable_offset)
            if entry.last_offset >= self._first_offset:
                self._unreturned.append(entry)


class IndexEntries:
    """Read the entries of the tier's indexes below the local log, then those of the local ones.

    Iterate once. Raises as AbortedTransactions.below.

    Attributes:
        is_changed: RLMM answered for another revision of the partition than that of the view, or
            does not know the partition any more.
    """

    def __init__(self, view: PartitionView, first_offset: int) -> None:
        self._view = view
        self._first_offset = first_offset
        self._revision: int | None = None
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
        lineage, offset = self._view.lineage(), self._first_offset
        self._revision = self._view.tier.revision
        end_offset = min(end_offset, self._view.tier.end_offset)
        while offset < end_offset:
            find = partial(self._next_index, lineage.between(offset, end_offset))
            segment, index = self._view.calls.call(find)
            if segment is None:
                return
            ranges = list(EpochRanges(lineage).of(segment))
            for entry in parse_aborted_txns(index):
                if any(max(first, offset) <= entry.last_offset <= last for first, last in ranges):
                    yield entry
            offset = max(segment.end_offset, offset) + 1

    def _next_index(
        self, epochs: Sequence[SegmentLeaderEpoch]
    ) -> tuple[RemoteLogSegmentMetadata | None, bytes]:
        """Read the first transaction index of these leader epochs; None if there is none.

        Raises:
            CorruptSegmentError, RetriableRemoteStorageError: if the index cannot be read.
        """
        segment, index = self._find_index(epochs, self._revision)
        missing: RemoteLogSegmentMetadata | None = None
        while segment is not None and not (index or segment.txn_idx_empty or segment == missing):
            # There is none, as in Kafka, or the segment was deleted: RLMM shows which, if it is
            # called after the store.
            missing = segment
            segment, index = self._find_index(epochs, None)
        return segment, index

    def _find_index(
        self, epochs: Sequence[SegmentLeaderEpoch], revision: int | None
    ) -> tuple[RemoteLogSegmentMetadata | None, bytes]:
        remote, name = self._view.remote, self._view.partition.topic_id_partition
        for epoch in epochs:
            try:
                answer = remote.lookups.next_with_transactions(
                    name, epoch.leader_epoch, epoch.start_offset, revision
                )
            except RemoteResourceNotFoundError:
                self.is_changed = True
                return None, b""
            self.is_changed |= answer.revision != self._revision
            if answer.value is not None:
                return answer.value, remote.indexes.index(answer.value, IndexType.TRANSACTION)
        return None, b""


def _local_entries(log: LocalLog, offset: int) -> Iterator[AbortedTxn]:
    for segment in log.segments:
        if segment.base_offset >= log.high_watermark:
            return  # The records that a reader gets have ended before.
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
