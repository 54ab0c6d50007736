"""Plan which bytes of which segments have a range of offsets."""

from struct import pack
from typing import Any

import pytest

from services.api.errors import RemoteStorageError
from services.api.ids import RemoteLogSegmentId, tail_uuid
from services.api.lineage import Lineage
from services.api.partitions import OffsetGap
from services.api.segments import RemoteLogSegmentMetadata, segment_leader_epochs
from services.records.index_files import AbortedTxn, OffsetIndex
from spark_jobs.records.plan import (
    Extent,
    Piece,
    Reach,
    cut,
    pieces_of,
    reach_of,
    tasks_of,
)
from tests.harness.tier import a_topic, segment

[TP] = a_topic()


def made(start: int, end: int, *epochs: tuple[int, int], **fields: Any) -> RemoteLogSegmentMetadata:
    number = start // 100
    values: dict[str, Any] = {
        "start_offset": start,
        "end_offset": end,
        "segment_leader_epochs": segment_leader_epochs(epochs or [(0, start)]),
        **fields,
    }
    return changed(segment(TP, number), **values)


def tail(start: int, end: int) -> RemoteLogSegmentMetadata:
    return changed(made(start, end), remote_log_segment_id=RemoteLogSegmentId(TP, tail_uuid()))


def changed(one: RemoteLogSegmentMetadata, **fields: Any) -> RemoteLogSegmentMetadata:
    values = {name: getattr(one, name) for name in one.__slots__}
    return RemoteLogSegmentMetadata(**{**values, **fields})


def reach(
    segments: list[RemoteLogSegmentMetadata],
    lineage: list[tuple[int, int]],
    from_offset: int = 0,
    gaps: tuple[OffsetGap, ...] = (),
    *,
    is_exact: bool = True,
) -> Reach:
    known = Lineage(segment_leader_epochs(lineage))
    return reach_of(segments, known, gaps, from_offset, is_exact=is_exact)


def ranges(found: Reach, segments: list[RemoteLogSegmentMetadata]) -> list[tuple[int, int, int]]:
    """Return the number of each segment and the offsets that are read of it."""
    return [(segments.index(e.segment), e.first, e.last) for e in found.extents]


def test_each_offset_is_read_from_one_segment() -> None:
    segments = [made(0, 99), made(50, 149), made(60, 80), made(150, 199)]
    found = reach(segments, [(0, 0)])
    assert ranges(found, segments) == [(0, 0, 99), (1, 100, 149), (3, 150, 199)]
    assert (found.first, found.end) == (0, 200)


def test_tails_are_read_until_their_segment_is_there() -> None:
    tails = [tail(100, 119), tail(120, 149)]
    segments = [made(0, 99), *tails]
    found = reach(segments, [(0, 0)])
    assert ranges(found, segments) == [(0, 0, 99), (1, 100, 119), (2, 120, 149)]
    assert (found.first, found.end) == (0, 150)
    for rolled_end, read in (
        (149, [(0, 0, 99), (3, 100, 149)]),
        (199, [(0, 0, 99), (3, 100, 199)]),
    ):
        segments = [made(0, 99), *tails, made(100, rolled_end)]
        assert ranges(reach(segments, [(0, 0)]), segments) == read
    # Equal to a tail, the rolled segment is read: it stays.
    segments = [made(0, 99), tail(100, 149), made(100, 149)]
    assert ranges(reach(segments, [(0, 0)]), segments) == [(0, 0, 99), (2, 100, 149)]


def test_only_the_epochs_of_the_lineage_count() -> None:
    [overruled, truncated] = made(0, 150, (0, 0), (1, 40)), made(0, 160, (0, 0))
    follower = made(40, 120, (2, 40))
    for other in (overruled, truncated):
        segments = [other, follower]
        found = reach(segments, [(0, 0), (2, 40)])
        assert ranges(found, segments) == [(0, 0, 39), (1, 40, 120)]


def test_a_segment_of_several_epochs_is_read_as_one() -> None:
    segments = [made(0, 99, (0, 0), (2, 40), (4, 60))]
    found = reach(segments, [(0, 0), (2, 40), (4, 60)])
    assert ranges(found, segments) == [(0, 0, 99)]
    assert found.extents[0].is_whole


@pytest.mark.parametrize(
    ("gaps", "end"), [((), 100), ((OffsetGap(100, 148),), 149), ((OffsetGap(90, 149),), 200)]
)
def test_a_hole_ends_the_reach_and_a_recorded_gap_does_not(
    gaps: tuple[OffsetGap, ...], end: int
) -> None:
    segments = [made(0, 99), made(150, 199)]
    assert reach(segments, [(0, 0)], gaps=gaps).end == end


def test_the_beginning_is_the_first_offset_there_is_unless_it_must_be_exact() -> None:
    segments = [made(50, 99)]
    assert reach(segments, [(0, 0)]) == Reach((), 0, 0)
    found = reach(segments, [(0, 0)], is_exact=False)
    assert (found.first, found.end) == (50, 100)
    assert reach([], [(0, 0)], 7, is_exact=False) == Reach((), 7, 7)


def test_extents_are_cut_to_a_range() -> None:
    [first, second] = [Extent(made(0, 99), 0, 99), Extent(made(100, 199), 100, 199)]
    assert list(cut([first, second], 20, 120)) == [
        Extent(first.segment, 20, 99),
        Extent(second.segment, 100, 119),
    ]
    assert list(cut([first, second], 200, 300)) == []


def index(*entries: tuple[int, int]) -> OffsetIndex:
    return OffsetIndex(b"".join(pack(">ii", *entry) for entry in entries), 0, 10_000)


def test_pieces_cover_every_position_once() -> None:
    whole = Extent(made(0, 99, segment_size_in_bytes=10_001), 0, 99)
    pieces = list(pieces_of(whole, [], None, 3_000))
    assert [p.start_position for p in pieces] == [0] + [p.end_position for p in pieces[:-1]]
    assert pieces[-1].end_position == 10_001
    assert max(piece.size_bytes for piece in pieces) <= 3_001


@pytest.mark.parametrize(
    ("first", "last", "start", "end"),
    [(0, 99, 0, 9_000), (20, 20, 1_000, 5_001), (10, 49, 1_000, 5_001), (60, 99, 5_000, 9_000)],
)
def test_the_index_leaves_out_bytes_before_and_after(
    first: int, last: int, start: int, end: int
) -> None:
    part = Extent(made(0, 99, segment_size_in_bytes=9_000), first, last)
    [piece] = pieces_of(part, [], index((10, 1_000), (50, 5_000)), 100_000)
    assert (piece.start_position, piece.end_position) == (start, end)


def test_a_piece_has_the_aborted_transactions_of_its_offsets() -> None:
    part = Extent(made(0, 99, segment_size_in_bytes=9_000), 20, 40)
    aborted = [AbortedTxn(1, 0, 19, 20), AbortedTxn(2, 0, 20, 21), AbortedTxn(3, 40, 41, 42)]
    [piece] = pieces_of(part, aborted, None, 100_000)
    assert [txn.producer_id for txn in piece.aborted] == [2, 3]


def test_a_segment_without_a_size_is_named() -> None:
    part = Extent(made(0, 99, segment_size_in_bytes=-1), 0, 99)
    with pytest.raises(RemoteStorageError, match="its metadata has no size; run `sediment scrub"):
        list(pieces_of(part, [], None, 1))


def test_small_pieces_share_a_task_and_partitions_do_not() -> None:
    other = segment(a_topic()[0], 0)

    def piece(of: RemoteLogSegmentMetadata, size_bytes: int) -> Piece:
        return Piece(Extent(of, of.start_offset, of.end_offset), 0, size_bytes)

    ours = made(0, 99)
    tasks = tasks_of([piece(ours, 40), piece(ours, 60), piece(ours, 1), piece(other, 1)], 100)
    assert [[p.size_bytes for p in task] for task in tasks] == [[40, 60], [1], [1]]
