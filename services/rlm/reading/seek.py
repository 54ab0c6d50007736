"""From an offset to the batch that holds it: the offset index, then a walk."""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from services.api.validation import INT64_MAX
from services.rlm.kafka_log.batches import Batch, verified, walk_batches
from services.rlm.kafka_log.errors import BatchError
from services.rlm.kafka_log.indexes import OFFSET_ENTRY
from services.rlm.kafka_log.windows import Window

IndexEntry = tuple[int, int]
TakesBatch = Callable[[int], bool]


@dataclass(frozen=True, slots=True)
class SegmentBytes:
    """A segment to read: `window` up to `end_position` (exclusive), and no batch that has
    `end_offset` or what follows it."""

    window: Window
    base_offset: int
    end_position: int
    end_offset: int = INT64_MAX


def batches_from(
    segment: SegmentBytes, offset: int, entry: IndexEntry | None, takes: TakesBatch
) -> Iterator[Batch]:
    """Every batch, verified, from the one that holds `offset`, or the next one behind it, on.

    Args:
        takes: is asked with a batch's size before its bytes are read; the first no ends the walk.
        entry: the greatest entry of the offset index at or below `offset`; one that does not point
            at its batch is not believed, and the walk begins at the segment's beginning.

    Raises:
        BatchError: a damaged batch.
    """
    position = entry[1] if entry is not None and _is_true(segment, entry) else 0
    batches = walk_batches(
        segment.window, position, segment.end_position, segment.base_offset, verify=False
    )
    for batch in batches:
        if batch.last_offset < offset:
            continue
        if batch.last_offset >= segment.end_offset or not takes(batch.size_bytes):
            return
        yield verified(segment.window, batch)


def _is_true(segment: SegmentBytes, entry: IndexEntry) -> bool:
    last_offset, position = entry
    batches = walk_batches(
        segment.window, position, segment.end_position, segment.base_offset, verify=False
    )
    try:
        first = next(batches, None)
    except BatchError:
        return False
    return first is not None and first.last_offset == last_offset


def entry_in_file(path: Path, base_offset: int, offset: int) -> IndexEntry | None:
    """Look `offset` up in a local offset index without reading it whole; None: begin at 0.

    An active segment's index is preallocated: the entries of zeroes at its end stand for none.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None

    def entry(number: int) -> IndexEntry:
        data = os.pread(fd, OFFSET_ENTRY.size, number * OFFSET_ENTRY.size)
        relative, position = OFFSET_ENTRY.unpack(data.ljust(OFFSET_ENTRY.size, b"\0"))
        return base_offset + relative, position

    def key(number: int) -> int:
        last_offset, position = entry(number)
        return last_offset if position else offset + 1

    try:
        count = os.fstat(fd).st_size // OFFSET_ENTRY.size
        at = bisect_right(range(count), offset, key=key)
        return entry(at - 1) if at else None
    finally:
        os.close(fd)
