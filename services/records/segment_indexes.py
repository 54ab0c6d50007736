"""Build a segment's indexes and leader epochs from its batches, as a broker's recovery does."""

from collections.abc import Mapping

from services.api.segments import SegmentLeaderEpoch
from services.records.batches import Batch
from services.records.decode import Marker, control_marker
from services.records.index_files import OFFSET_ENTRY, TIME_ENTRY, AbortedTxn

INDEX_INTERVAL_BYTES = 4096
"""Kafka's default of index.interval.bytes; a topic's own value is not on the disk."""


class Transactions:
    """Track the open transactions of a log, batch by batch.

    Attributes:
        open: producer id to the first offset of its open transaction.
    """

    def __init__(self, open_transactions: Mapping[int, int] | None = None) -> None:
        self.open = dict(open_transactions or {})

    def observe(self, batch: Batch) -> AbortedTxn | None:
        """Add the next batch of the log; return the transaction that it aborted, if any."""
        if batch.producer_id < 0 or not batch.is_transactional:
            return None
        if not batch.is_control:
            self.open.setdefault(batch.producer_id, batch.base_offset)
            return None
        marker = control_marker(batch)
        if marker is None:
            return None
        first = self.open.pop(batch.producer_id, None)
        # A marker of a transaction without data has no entry in the index.
        if first is None or marker is Marker.COMMIT:
            return None
        last = batch.base_offset
        stable = min(self.open.values(), default=last + 1)
        return AbortedTxn(batch.producer_id, first, last, stable)

    @property
    def first_open(self) -> int | None:
        """Return the first offset of the oldest open transaction; None if none is open."""
        return min(self.open.values(), default=None)

    def last_stable_offset(self, log_end_offset: int) -> int:
        """Return the first offset of the oldest open transaction, or else `log_end_offset`."""
        first = self.first_open
        return log_end_offset if first is None else first


class IndexBuilder:
    """Build the indexes and leader epochs of a segment from its batches, given in order.

    A broker that was restarted in the middle of a segment counts the interval from there, so its
    file may have other entries; both are correct.

    Source: LogSegment.recover.

    Args:
        transactions: those open where the segment begins. Without them, one that began earlier
            counts from its first batch in the segment.

    Attributes:
        max_timestamp_ms: -1 if no batch has a timestamp.
        aborted: the transactions that were aborted in the segment.
        leader_epochs: of the batches; the first begins at the first batch.
    """

    def __init__(
        self,
        base_offset: int,
        transactions: Transactions | None = None,
        interval_bytes: int = INDEX_INTERVAL_BYTES,
    ) -> None:
        self._base_offset = base_offset
        self._transactions = transactions or Transactions()
        self._interval_bytes = interval_bytes
        self._offsets = bytearray()
        self._times = bytearray()
        self._last_indexed_position = 0
        self._last_timestamp_ms = -1
        self._max_timestamp_offset = base_offset
        self.max_timestamp_ms = -1
        self.aborted: list[AbortedTxn] = []
        self.leader_epochs: list[SegmentLeaderEpoch] = []

    def observe(self, batch: Batch) -> None:
        """Add the next batch, whose data must be whole if it is a control batch."""
        if batch.max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = batch.max_timestamp_ms
            self._max_timestamp_offset = batch.last_offset
        if batch.position - self._last_indexed_position > self._interval_bytes:
            relative = batch.last_offset - self._base_offset
            self._offsets += OFFSET_ENTRY.pack(relative, batch.position)
            self._append_time()
            self._last_indexed_position = batch.position
        if (aborted := self._transactions.observe(batch)) is not None:
            self.aborted.append(aborted)
        latest = self.leader_epochs[-1].leader_epoch if self.leader_epochs else -1
        if batch.leader_epoch > latest:
            self.leader_epochs.append(SegmentLeaderEpoch(batch.leader_epoch, batch.base_offset))

    def offset_index(self) -> bytes:
        return bytes(self._offsets)

    def time_index(self) -> bytes:
        """Return the time index with the final entry of a rolled segment; call it last."""
        self._append_time()
        return bytes(self._times)

    def transaction_index(self) -> bytes:
        return b"".join(entry.to_bytes() for entry in self.aborted)

    def _append_time(self) -> None:
        if self.max_timestamp_ms > self._last_timestamp_ms:
            relative = self._max_timestamp_offset - self._base_offset
            self._times += TIME_ENTRY.pack(self.max_timestamp_ms, relative)
            self._last_timestamp_ms = self.max_timestamp_ms
