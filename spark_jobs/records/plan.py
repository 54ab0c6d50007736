"""Plan which bytes of which segments have the records of a range of offsets. Pure rules."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from services.api.errors import RemoteStorageError
from services.api.lineage import EpochRanges, Lineage
from services.api.partitions import OffsetGap
from services.api.segments import RemoteLogSegmentMetadata
from services.api.superseded import is_tail
from services.records.index_files import AbortedTxn, OffsetIndex


@dataclass(frozen=True, slots=True)
class Extent:
    """The offsets, both inclusive, that are read from one segment."""

    segment: RemoteLogSegmentMetadata
    first: int
    last: int

    @property
    def is_whole(self) -> bool:
        return self.first <= self.segment.start_offset and self.last >= self.segment.end_offset


@dataclass(frozen=True, slots=True)
class Reach:
    """How far the finished segments of a lineage reach without an unexplained gap.

    Attributes:
        first: the first offset that is read; equals `end` if there is none.
        end: exclusive.
    """

    extents: tuple[Extent, ...]
    first: int
    end: int


def reach_of(
    segments: Iterable[RemoteLogSegmentMetadata],
    lineage: Lineage,
    gaps: Sequence[OffsetGap],
    from_offset: int,
    *,
    is_exact: bool,
) -> Reach:
    """Choose, for each offset from `from_offset` on, one finished segment that has it.

    Overlapping segments have the same records at the same offset and leader epoch, so that one of
    them is enough. Segments of other leader epochs than the lineage's have records that the log
    does not have.

    Args:
        gaps: offsets that the tier will never have; the reach goes on behind them.
        is_exact: False: begin at the first offset that a segment has.
    """
    parts = sorted(_in_lineage(segments, lineage), key=lambda part: (part.first, part.last))
    if not is_exact:
        from_offset = min(
            (max(part.first, from_offset) for part in parts if part.last >= from_offset),
            default=from_offset,
        )
    extents: list[Extent] = []
    best: Extent | None = None
    at, number = from_offset, 0
    while True:
        while number < len(parts) and parts[number].first <= at:
            part = parts[number]
            best = part if best is None or _rank(part) > _rank(best) else best
            number += 1
        if best is None or best.last < at:
            behind = _behind_gap(gaps, at)
            if behind is None:
                return Reach(tuple(extents), from_offset, at)
            at = behind
            continue
        _append(extents, Extent(best.segment, at, best.last))
        at = best.last + 1


def _in_lineage(segments: Iterable[RemoteLogSegmentMetadata], lineage: Lineage) -> Iterator[Extent]:
    """Yield the parts of segments that belong to the lineage."""
    ranges = EpochRanges(lineage)
    for segment in segments:
        for first, last in ranges.of(segment):
            yield Extent(segment, first, last)


def _rank(part: Extent) -> tuple[int, bool]:
    """Return how well a part serves: a tail may be deleted once the rolled segment is there."""
    return part.last, not is_tail(part.segment)


def _append(extents: list[Extent], extent: Extent) -> None:
    if extents and extents[-1].segment is extent.segment and extents[-1].last + 1 == extent.first:
        extents[-1] = replace(extents[-1], last=extent.last)
    else:
        extents.append(extent)


def _behind_gap(gaps: Sequence[OffsetGap], offset: int) -> int | None:
    """Return the offset behind the recorded gap that has `offset`; None if none has."""
    at = bisect_right(gaps, offset, key=lambda gap: gap.start_offset)
    return gaps[at - 1].end_offset + 1 if at and gaps[at - 1].end_offset >= offset else None


def cut(extents: Iterable[Extent], first: int, end: int) -> Iterator[Extent]:
    """Yield the parts of extents from `first` to `end`, exclusive."""
    for extent in extents:
        clipped = replace(extent, first=max(extent.first, first), last=min(extent.last, end - 1))
        if clipped.first <= clipped.last:
            yield clipped


@dataclass(frozen=True, slots=True)
class Piece:
    """What a task reads of a segment: the batches that begin in a range of bytes.

    Attributes:
        start_position, end_position: of the range; the end is exclusive.
        aborted: the aborted transactions with records in the extent; empty if they are read too.
    """

    extent: Extent
    start_position: int
    end_position: int
    aborted: tuple[AbortedTxn, ...] = ()

    @property
    def size_bytes(self) -> int:
        return self.end_position - self.start_position


def pieces_of(
    extent: Extent,
    aborted: Iterable[AbortedTxn],
    index: OffsetIndex | None,
    split_bytes: int,
) -> Iterator[Piece]:
    """Split an extent into pieces of about equal size, at most `split_bytes` each.

    Args:
        index: the segment's offset index, to leave out bytes before and after the extent; None to
            read from the beginning to the end.

    Raises:
        RemoteStorageError: the metadata has no size.
    """
    segment = extent.segment
    size = segment.segment_size_in_bytes
    if size < 0:
        name = segment.remote_log_segment_id
        raise RemoteStorageError(
            f"segment {name} cannot be read: its metadata has no size; run `sediment scrub --topic "
            f"{name.topic_id_partition.topic}`"
        )
    start, end = (0, size) if index is None else _positions(extent, index, size)
    within = tuple(
        txn
        for txn in aborted
        if txn.first_offset <= extent.last and txn.last_offset >= extent.first
    )
    count = max(-(-(end - start) // split_bytes), 1)
    for number in range(count):
        yield Piece(
            extent,
            start + (end - start) * number // count,
            start + (end - start) * (number + 1) // count,
            within,
        )


def _positions(extent: Extent, index: OffsetIndex, size: int) -> tuple[int, int]:
    """Return bounds of the positions at which the batches of an extent begin."""
    before = index.lookup(extent.first)
    behind = next((position for last, position in index if last >= extent.last), None)
    # The batch of an entry has the extent's last offset, or one before it has.
    return before[1] if before else 0, size if behind is None else behind + 1


def tasks_of(pieces: Iterable[Piece], split_bytes: int) -> list[list[Piece]]:
    """Join small pieces to tasks of about `split_bytes`; each task has one partition."""
    tasks: list[list[Piece]] = []
    size_bytes, partition = 0, None
    for piece in pieces:
        of = piece.extent.segment.topic_id_partition
        if not tasks or of != partition or size_bytes + piece.size_bytes > split_bytes:
            tasks.append([])
            size_bytes, partition = 0, of
        tasks[-1].append(piece)
        size_bytes += piece.size_bytes
    return tasks
