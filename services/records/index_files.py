"""Read a segment's index files: offsets, times, aborted transactions, open transactions."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

OFFSET_ENTRY = Struct(">ii")
TIME_ENTRY = Struct(">qi")

ABORTED_TXN_BYTES = 34
_ABORTED_TXN = Struct(">hqqqq")
_PREFIX = Struct(">hIi")
_ENTRY = Struct(">qhiqiqiq")
_COUNT = Struct(">i")
_CRC_COVERS_FROM = 6
_SNAPSHOT_VERSION = 1
EMPTY_PRODUCER_SNAPSHOT = _PREFIX.pack(_SNAPSHOT_VERSION, crc32c(bytes(4)), 0)
"""What Kafka writes for a log without producer ids (ProducerStateManager.writeSnapshot)."""


class OffsetIndex:
    """Find the position in a segment at which to start reading for an offset.

    Args:
        segment_size_bytes: None if the data was checked before.

    Raises:
        ValueError: if an entry is incomplete or outside of the segment, or entries do not ascend in
            offset and position.
    """

    def __init__(
        self, data: bytes, base_offset: int, segment_size_bytes: int | None = None
    ) -> None:
        self._data = data
        self._base_offset = base_offset
        self._count = len(data) // OFFSET_ENTRY.size
        if segment_size_bytes is not None:
            _check_offset_index(data, segment_size_bytes)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return (self.entry(number) for number in range(self._count))

    def entry(self, number: int) -> tuple[int, int]:
        """Read an entry: last offset and position of a batch."""
        relative, position = OFFSET_ENTRY.unpack_from(self._data, number * OFFSET_ENTRY.size)
        return self._base_offset + relative, position

    def lookup(self, offset: int) -> tuple[int, int] | None:
        """Find the greatest entry at or below `offset`; None to start at position 0."""
        at = bisect_right(range(self._count), offset, key=lambda number: self.entry(number)[0])
        return self.entry(at - 1) if at else None

    def position_before(self, position: int) -> int:
        """Return the last position of an entry at or below `position`; 0 if there is none."""
        at = bisect_right(range(self._count), position, key=lambda number: self.entry(number)[1])
        return self.entry(at - 1)[1] if at else 0


def _check_offset_index(data: bytes, segment_size_bytes: int) -> None:
    if len(data) % OFFSET_ENTRY.size:
        raise ValueError(f"{len(data)} bytes are not whole entries of {OFFSET_ENTRY.size}")
    before = (-1, -1)
    for entry in OFFSET_ENTRY.iter_unpack(data):
        if entry[0] <= before[0] or entry[1] <= before[1]:
            raise ValueError(f"entry {entry} follows {before}")
        before = entry[0], entry[1]
    if before[1] >= segment_size_bytes > 0:
        raise ValueError(f"position {before[1]} in a segment of {segment_size_bytes} bytes")


def check_time_index(
    data: bytes, base_offset: int, end_offset: int, max_timestamp_ms: int | None = None
) -> None:
    """Check a rolled segment's time index.

    Args:
        max_timestamp_ms: of the segment; None for a copy that a broker may have made, whose
            timestamps may be repeated.

    Raises:
        ValueError: if an entry is incomplete, timestamps or offsets do not ascend, an offset is
            outside of the segment, or the last entry lacks the segment's greatest timestamp.
    """
    if len(data) % TIME_ENTRY.size:
        raise ValueError(f"{len(data)} bytes are not whole entries of {TIME_ENTRY.size}")
    least_step_ms = 0 if max_timestamp_ms is None else 1
    before = (-1, 0)
    for timestamp, relative in TIME_ENTRY.iter_unpack(data):
        if timestamp < before[0] + least_step_ms or relative < before[1]:
            raise ValueError(f"entry {(timestamp, relative)} follows {before}")
        before = timestamp, relative
    if base_offset + before[1] > end_offset:
        raise ValueError(f"offset {base_offset + before[1]} is beyond the segment")
    if max_timestamp_ms is not None and before[0] != max_timestamp_ms:
        raise ValueError(f"ends at timestamp {before[0]}, the segment at {max_timestamp_ms}")


def first_offset_since(time_index: bytes, first_offset: int, last_offset: int, time_ms: int) -> int:
    """Return an offset of a segment before which every record is older than `time_ms`.

    Args:
        first_offset, last_offset: of the segment, both inclusive.
    """
    count = len(time_index) // TIME_ENTRY.size
    at = bisect_left(range(count), time_ms, key=lambda number: _time_entry(time_index, number)[0])
    if at == 0:
        return first_offset
    return min(first_offset + _time_entry(time_index, at - 1)[1], last_offset)


def _time_entry(time_index: bytes, number: int) -> tuple[int, int]:
    max_timestamp_ms, relative = TIME_ENTRY.unpack_from(time_index, number * TIME_ENTRY.size)
    return max_timestamp_ms, relative


class AbortedTxn(NamedTuple):
    """The entry of a transaction index; offsets are inclusive, the last one is the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def to_bytes(self) -> bytes:
        return _ABORTED_TXN.pack(0, *self)


def parse_aborted_txns(data: bytes) -> list[AbortedTxn]:
    """Read the entries of a transaction index.

    Raises:
        ValueError: if an entry is incomplete, or not of version 0.
    """
    if len(data) % ABORTED_TXN_BYTES:
        raise ValueError(f"{len(data)} bytes are not whole entries of {ABORTED_TXN_BYTES}")
    entries = []
    for version, *fields in _ABORTED_TXN.iter_unpack(data):
        if version != 0:
            raise ValueError(f"entry of version {version}")
        entries.append(AbortedTxn(*fields))
    return entries


class ProducerEntry(NamedTuple):
    """A producer in a producer snapshot.

    Attributes:
        last_sequence, last_offset, offset_delta: of its last batch in this epoch; -1, -1 and 0 if
            there is none.
        coordinator_epoch: of its last transaction's end; -1 if there is none.
        first_offset_of_transaction: of the open one; -1 if none is open.
    """

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int
    coordinator_epoch: int
    first_offset_of_transaction: int


def producer_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """Write a producer snapshot. Source: ProducerStateManager.writeSnapshot."""
    packed = [_ENTRY.pack(*entry) for entry in entries]
    body = b"".join([_COUNT.pack(len(packed)), *packed])
    return _PREFIX.pack(_SNAPSHOT_VERSION, crc32c(body), len(packed)) + body[_COUNT.size :]


def producer_entries(snapshot: bytes) -> Iterator[ProducerEntry]:
    """Read a producer snapshot, at once.

    Raises:
        ValueError: if the version or the CRC is wrong, or the count does not match the length.
    """
    if len(snapshot) < _PREFIX.size:
        raise ValueError(f"only {len(snapshot)} bytes")
    version, crc, count = _PREFIX.unpack_from(snapshot)
    if version != _SNAPSHOT_VERSION:
        raise ValueError(f"version must be {_SNAPSHOT_VERSION}, is {version}")
    if crc32c(snapshot[_CRC_COVERS_FROM:]) != crc:
        raise ValueError("wrong CRC-32C")
    if len(snapshot) != _PREFIX.size + count * _ENTRY.size:
        raise ValueError(f"announces {count} producers in {len(snapshot)} bytes")
    return map(ProducerEntry._make, _ENTRY.iter_unpack(snapshot[_PREFIX.size :]))


def open_transactions(snapshot: bytes) -> dict[int, int]:
    """Read the open transactions of a producer snapshot: first offset by producer id.

    Raises:
        ValueError: as producer_entries.
    """
    return {
        entry.producer_id: entry.first_offset_of_transaction
        for entry in producer_entries(snapshot)
        if entry.first_offset_of_transaction >= 0
    }
