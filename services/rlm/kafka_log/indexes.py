"""Offset and time indexes: look-up, checks, and how a broker would have written them.

Source: kafka-storage OffsetIndex, TimeIndex, LogSegment.append and recover.
"""

from bisect import bisect_right
from collections.abc import Iterator
from struct import Struct

from services.rlm.kafka_log.batches import Batch

OFFSET_ENTRY = Struct(">ii")
TIME_ENTRY = Struct(">qi")
INDEX_INTERVAL_BYTES = 4096
"""Kafka's default of index.interval.bytes; a topic's own value is not on the disk."""


class OffsetIndex:
    """Where in a segment to begin to look for an offset.

    Args:
        segment_size_bytes: None: one was made of this data before, which is not checked again.

    Raises:
        ValueError: not whole entries; entries that do not ascend in offset and position; one
            outside of the segment.
    """

    def __init__(
        self, data: bytes, base_offset: int, segment_size_bytes: int | None = None
    ) -> None:
        self._data = data
        self._base_offset = base_offset
        self._count = len(data) // OFFSET_ENTRY.size
        if segment_size_bytes is not None:
            _check_offset_index(data, segment_size_bytes)

    def __len__(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        return len(self._data)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return (self.entry(number) for number in range(self._count))

    def entry(self, number: int) -> tuple[int, int]:
        """(last offset of a batch, position of that batch)."""
        relative, position = OFFSET_ENTRY.unpack_from(self._data, number * OFFSET_ENTRY.size)
        return self._base_offset + relative, position

    def lookup(self, offset: int) -> tuple[int, int] | None:
        """The greatest entry at or below `offset`; None: begin at position 0."""
        at = bisect_right(range(self._count), offset, key=lambda number: self.entry(number)[0])
        return self.entry(at - 1) if at else None


def _check_offset_index(data: bytes, segment_size_bytes: int) -> None:
    if len(data) % OFFSET_ENTRY.size:
        raise ValueError(f"{len(data)} bytes are not whole entries of {OFFSET_ENTRY.size}")
    before = (-1, -1)
    for entry in OFFSET_ENTRY.iter_unpack(data):
        if entry[0] <= before[0] or entry[1] <= before[1]:
            raise ValueError(f"entry {entry} stands behind {before}")
        before = entry[0], entry[1]
    if before[1] >= segment_size_bytes > 0:
        raise ValueError(f"position {before[1]} in a segment of {segment_size_bytes} bytes")


def check_time_index(data: bytes, base_offset: int, end_offset: int, max_timestamp_ms: int) -> None:
    """Check a rolled segment's time index.

    Raises:
        ValueError: not whole entries; timestamps or offsets that do not ascend, offsets outside of
            the segment, or a last entry that is not the segment's greatest timestamp.
    """
    if len(data) % TIME_ENTRY.size:
        raise ValueError(f"{len(data)} bytes are not whole entries of {TIME_ENTRY.size}")
    before = (-1, 0)
    for timestamp, relative in TIME_ENTRY.iter_unpack(data):
        if timestamp <= before[0] or relative < before[1]:
            raise ValueError(f"entry {(timestamp, relative)} stands behind {before}")
        before = timestamp, relative
    if base_offset + before[1] > end_offset:
        raise ValueError(f"offset {base_offset + before[1]} is beyond the segment")
    if before[0] != max_timestamp_ms:
        raise ValueError(f"ends at timestamp {before[0]}, the segment at {max_timestamp_ms}")


class IndexBuilder:
    """Builds both indexes of a segment while its batches are walked, as a broker does.

    A broker that was restarted in the middle of a segment counts the interval anew from there, so
    its own file may have other entries than these; each set is right.
    """

    def __init__(self, base_offset: int, interval_bytes: int = INDEX_INTERVAL_BYTES) -> None:
        self._base_offset = base_offset
        self._interval_bytes = interval_bytes
        self._offsets = bytearray()
        self._times = bytearray()
        self._last_indexed_position = 0
        self._last_timestamp_ms = -1
        self._max_timestamp_offset = base_offset
        self.max_timestamp_ms = -1

    def observe(self, batch: Batch) -> None:
        if batch.max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = batch.max_timestamp_ms
            self._max_timestamp_offset = batch.last_offset
        if batch.position - self._last_indexed_position > self._interval_bytes:
            relative = batch.last_offset - self._base_offset
            self._offsets += OFFSET_ENTRY.pack(relative, batch.position)
            self._append_time()
            self._last_indexed_position = batch.position

    def offset_index(self) -> bytes:
        return bytes(self._offsets)

    def time_index(self) -> bytes:
        """With the final entry that a segment gets when it is rolled; call it last."""
        self._append_time()
        return bytes(self._times)

    def _append_time(self) -> None:
        if self.max_timestamp_ms > self._last_timestamp_ms:
            relative = self._max_timestamp_offset - self._base_offset
            self._times += TIME_ENTRY.pack(self.max_timestamp_ms, relative)
            self._last_timestamp_ms = self.max_timestamp_ms
