"""Read the batches of a segment in runs: verified batches that follow each other."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple, Protocol

from crc32c import crc32c

from services.api.validation import INT64_MAX
from services.records.batches import (
    CRC_COVERS_FROM,
    HEADER_BYTES,
    LENGTH_COUNTED_FROM,
    MAGIC,
    NO_CLAIMS,
    Batch,
    BatchError,
    Claims,
    MemoryWindow,
    Window,
    read_batch,
    verified,
    walk_batches,
)

RUN_BYTES = 256 * 1024
"""The most that several batches of a run have; a longer batch is a run of its own.

Runs are gathered into answers of 1 MiB, which shorter runs fill better.
"""

IndexEntry = tuple[int, int]
"""An entry of an offset index: an offset, and the position of its batch."""

AdmitBatch = Callable[[int], bool]
"""Count a batch of so many bytes; return False if it exceeds what is left to the reader."""

_HEADER = Struct(">qiibIhi")


class RunWindow(Window, Protocol):
    """A window that buffers bytes."""

    def buffered(self, position: int) -> memoryview:
        """Return the buffered bytes from `position` on; perhaps none."""


@dataclass(frozen=True, slots=True)
class SegmentBytes:
    """The part of a segment to read.

    It is `window` up to `end_position` (exclusive), and only batches below `end_offset`. A batch
    that does not agree with `claims` is damaged.
    """

    window: RunWindow
    base_offset: int
    end_position: int
    end_offset: int = INT64_MAX
    claims: Claims = NO_CLAIMS


class BatchRun(NamedTuple):
    """Verified batches that follow each other in a segment.

    Attributes:
        position: of the first byte in the segment.
        last_offset: of the last batch, inclusive.
        data: the whole batches, at least one.
    """

    position: int
    last_offset: int
    data: memoryview

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    @property
    def next_position(self) -> int:
        return self.position + len(self.data)

    def batches(self) -> Iterator[Batch]:
        """Yield the batches, each with all of its data."""
        data = self.data
        for batch in walk_batches(MemoryWindow(data), 0, len(data), 0, verify=False):
            whole = data[batch.position : batch.next_position]
            yield batch._replace(position=self.position + batch.position, data=whole)


def runs_from(
    segment: SegmentBytes,
    offset: int,
    entry: IndexEntry | None,
    admit: AdmitBatch,
    start: int = 0,
) -> Iterator[BatchRun]:
    """Read and verify the batches from the one that contains `offset` or follows it.

    A run ends before bytes that are not buffered yet.

    Args:
        admit: called with a batch's size; the first False ends the read.
        entry: the greatest entry of the offset index at or below `offset`; if it does not point at
            its batch, the read starts at `start`.
        start: the position of a batch that is not after `offset`; above 0, that of a batch that
            does not begin before it.

    Raises:
        BatchError: if a batch is damaged, after the run before it.
    """
    window, end = segment.window, segment.end_position
    position, claims = start, segment.claims
    next_offset = offset if start else segment.base_offset
    if entry is not None and _points_at_batch(segment, entry):
        position, next_offset = entry[1], segment.base_offset
    while position < end:
        first = read_batch(window, position, end, next_offset, False, claims)
        position, next_offset = first.next_position, first.last_offset + 1
        if first.last_offset < offset:
            continue
        if first.last_offset >= segment.end_offset or not admit(first.size_bytes):
            return
        data = verified(window, first).data
        buffer = window.buffered(position)[: max(min(end - position, RUN_BYTES - len(data)), 0)]
        more_bytes, next_offset, has_ended = _admitted(buffer, next_offset, segment, admit)
        if more_bytes:
            data = window.read(first.position, first.size_bytes + more_bytes)
            position += more_bytes
        yield BatchRun(first.position, next_offset - 1, data)
        if has_ended:
            return


def _admitted(
    data: memoryview, next_offset: int, segment: SegmentBytes, admit: AdmitBatch
) -> tuple[int, int, bool]:
    """Verify and count the whole batches at the beginning of `data`.

    Returns:
        Their bytes, the offset after them, and whether the next one is not admitted. They end
        before a batch with anything wrong, which read_batch describes if it is read alone.
    """
    at = 0
    while at + HEADER_BYTES <= len(data):
        base, length, epoch, magic, crc, _, last_delta = _HEADER.unpack_from(data, at)
        size, last = length + LENGTH_COUNTED_FROM, base + last_delta
        is_sound = magic == MAGIC and size >= HEADER_BYTES and next_offset <= base <= last
        if not is_sound or at + size > len(data) or last >= segment.end_offset:
            break
        if not segment.claims.allow(last, base, epoch):
            break
        if crc32c(data[at + CRC_COVERS_FROM : at + size]) != crc:
            break
        if not admit(size):
            return at, next_offset, True
        at, next_offset = at + size, last + 1
    return at, next_offset, False


def _points_at_batch(segment: SegmentBytes, entry: IndexEntry) -> bool:
    last_offset, position = entry
    if not 0 <= position < segment.end_position:
        return False
    try:
        first = read_batch(
            segment.window, position, segment.end_position, segment.base_offset, verify=False
        )
    except BatchError:
        return False
    return first.last_offset == last_offset
