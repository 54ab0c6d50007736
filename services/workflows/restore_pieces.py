"""Choose the segments, or parts of them, from which a partition's log is restored."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from services.api.lineage import EpochRanges, Lineage
from services.api.remote_storage_manager import IndexType
from services.api.segments import RemoteLogSegmentMetadata
from services.api.superseded import is_tail
from services.records.batches import RangeReader


@dataclass(frozen=True, slots=True)
class Source:
    """A segment of the tier, or of a local log.

    Attributes:
        read: opens a stream over a range of its log.
        index: returns an index file as it is stored, b"" if there is none; None if it is to be
            rebuilt. Asked for TRANSACTION and PRODUCER_SNAPSHOT.
        is_local: of a local log, whose segments are taken for what the tier has not.
    """

    segment: RemoteLogSegmentMetadata
    read: RangeReader
    index: Callable[[IndexType], bytes | None]
    is_local: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """The offsets of a source that become a segment of the restored log, both inclusive."""

    source: Source
    start_offset: int
    end_offset: int

    @property
    def is_whole(self) -> bool:
        segment = self.source.segment
        return (self.start_offset, self.end_offset) == (segment.start_offset, segment.end_offset)


def lineage_of(known: Iterable[Lineage], segments: Iterable[RemoteLogSegmentMetadata]) -> Lineage:
    """Return the leader epochs of a log, also of offsets before its log start.

    A history counts before those with a lower latest epoch, which add only its beginning.

    Args:
        known: histories of whole logs; of equal latest epochs the first counts.
        segments: each has the history of its offsets.
    """
    newest_first = sorted(
        segments, key=lambda s: (s.segment_leader_epochs[-1].leader_epoch, s.end_offset)
    )[::-1]
    parts = [*known, *(Lineage(segment.segment_leader_epochs) for segment in newest_first)]
    found = Lineage()
    for part in sorted(parts, key=_latest_epoch, reverse=True):
        found = part.merged_with_report(found) if found.entries else part
    return found


def _latest_epoch(lineage: Lineage) -> int:
    return -1 if lineage.latest_epoch is None else lineage.latest_epoch


def choose_pieces(
    sources: Sequence[Source], lineage: Lineage, start_offset: int, end_offset: int | None
) -> tuple[list[Piece], list[tuple[int, int]]]:
    """Return pieces with each offset of the range once, and the ranges that no source has.

    Only offsets under the epochs of the lineage count. The source that reaches furthest is taken,
    so that tails and superseded segments are left out. The first piece begins where its source
    does, perhaps before `start_offset`.

    Args:
        end_offset: exclusive; None for the end of the last source.
    """
    ranges = EpochRanges(lineage)
    spans = [(*span, source) for source in sources for span in _spans(source, ranges)]
    spans.sort(key=lambda span: span[0])
    end = end_offset if end_offset is not None else max((s[1] + 1 for s in spans), default=0)
    pieces: list[Piece] = []
    missing: list[tuple[int, int]] = []
    best: tuple[int, int, Source] | None = None
    at, offset = 0, start_offset
    while offset < end:
        while at < len(spans) and spans[at][0] <= offset:
            best = spans[at] if best is None else max(best, spans[at], key=_rank)
            at += 1
        if best is not None and best[1] >= offset:
            first = offset if pieces and best[0] < offset else best[0]
            pieces.append(Piece(best[2], first, min(best[1], end - 1)))
            offset = best[1] + 1
        else:
            following = min(spans[at][0], end) if at < len(spans) else end
            missing.append((offset, following - 1))
            offset = following
    return pieces, missing


def _spans(source: Source, ranges: EpochRanges) -> Iterator[tuple[int, int]]:
    """Yield the source's offsets that belong to the lineage, adjacent ranges as one."""
    first, last = -1, -2
    for start, end in ranges.of(source.segment):
        if start != last + 1:
            if first >= 0:
                yield first, last
            first = start
        last = end
    if first >= 0:
        yield first, last


def _rank(span: tuple[int, int, Source]) -> tuple[int, bool, bool]:
    _, last, source = span
    return last, not source.is_local, not is_tail(source.segment)
