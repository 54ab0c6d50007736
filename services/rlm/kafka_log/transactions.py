"""Which transactions are open at an offset, and which were aborted before it.

Source: kafka-storage ProducerStateManager, ProducerAppendInfo, AbortedTxn.
"""

from collections.abc import Mapping
from enum import Enum
from struct import Struct
from typing import NamedTuple

from services.rlm.kafka_log.batches import HEADER_BYTES, Batch

ABORTED_TXN_BYTES = 34
_ABORTED_TXN = Struct(">hqqqq")
_CONTROL_KEY = Struct(">hh")


class Marker(Enum):
    """The two control records that end a transaction, by their type number."""

    ABORT = 0
    COMMIT = 1


class AbortedTxn(NamedTuple):
    """One entry of a transaction index; offsets inclusive, the last one is the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def to_bytes(self) -> bytes:
        return _ABORTED_TXN.pack(0, *self)


def parse_aborted_txns(data: bytes) -> list[AbortedTxn]:
    """The entries of a transaction index.

    Raises:
        ValueError: not whole entries, or not version 0.
    """
    if len(data) % ABORTED_TXN_BYTES:
        raise ValueError(f"{len(data)} bytes are not whole entries of {ABORTED_TXN_BYTES}")
    entries = []
    for version, *fields in _ABORTED_TXN.iter_unpack(data):
        if version != 0:
            raise ValueError(f"entry of version {version}")
        entries.append(AbortedTxn(*fields))
    return entries


class Transactions:
    """The transactions that are open at the place which a walk over the log has reached.

    Attributes:
        open: producer id to the first offset of its open transaction.
    """

    def __init__(self, open_transactions: Mapping[int, int] | None = None) -> None:
        self.open = dict(open_transactions or {})

    def observe(self, batch: Batch) -> AbortedTxn | None:
        """Take the next batch of the log; the transaction that it aborted, if it did."""
        if batch.producer_id < 0 or not batch.is_transactional:
            return None
        if not batch.is_control:
            self.open.setdefault(batch.producer_id, batch.base_offset)
            return None
        marker = control_marker(batch)
        if marker is None:
            return None
        first = self.open.pop(batch.producer_id, None)
        # A marker that ends no data leaves no trace in the index.
        if first is None or marker is Marker.COMMIT:
            return None
        last = batch.base_offset
        stable = min(self.open.values(), default=last + 1)
        return AbortedTxn(batch.producer_id, first, last, stable)

    def last_stable_offset(self, log_end_offset: int) -> int:
        """The first offset of the oldest open transaction, else `log_end_offset`."""
        return min(self.open.values(), default=log_end_offset)


def control_marker(batch: Batch) -> Marker | None:
    """The marker in a control batch; None for the other kinds of control record."""
    record = batch.data[HEADER_BYTES:]
    _, at = _varint(record, 0)  # length of the record
    at += 1  # attributes
    _, at = _varint(record, at)  # timestamp delta
    _, at = _varint(record, at)  # offset delta
    key_length, at = _varint(record, at)
    if key_length < _CONTROL_KEY.size or at + _CONTROL_KEY.size > len(record):
        return None
    _, number = _CONTROL_KEY.unpack_from(record, at)
    return Marker(number) if number in (0, 1) else None


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """The zig-zag number at `at`, and where it ends; (0, end) beyond the end of the data."""
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return (value >> 1) ^ -(value & 1), at
