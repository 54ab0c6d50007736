"""Test which parts of which segments a restored log is made of."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from services.api.lineage import Lineage
from services.api.segments import SegmentLeaderEpoch, segment_leader_epochs
from services.workflows.restore_pieces import Source, choose_pieces, lineage_of
from tests.harness.tier import a_topic, segment

TP = a_topic("orders")[0]
END = 60


def source(start: int, end: int, epochs: Sequence[SegmentLeaderEpoch]) -> Source:
    known = Lineage(tuple(epochs)).between(start, end)
    made = segment(TP, 0, segment_leader_epochs=segment_leader_epochs([(0, 0)]))
    fields = {name: getattr(made, name) for name in made.__slots__ if name != "kept_until_ms"}
    fields |= {"start_offset": start, "end_offset": end - 1, "segment_leader_epochs": known}
    return Source(type(made)(**fields), lambda first, last: iter(()), lambda kind: None)


@st.composite
def histories(draw: st.DrawFn) -> tuple[Lineage, list[Source]]:
    """Draw a lineage and segments of it, and segments of branches that an election cut off."""
    # The last leader is later than those of the branches, and has written.
    borders = sorted({*draw(st.sets(st.integers(1, END - 1), max_size=4)), END - 1})
    entries = [(0, 0), *((2 * number, at) for number, at in enumerate(borders, 1))]
    lineage = Lineage(segment_leader_epochs(entries))
    ranges = st.tuples(st.integers(0, END - 1), st.integers(1, 25))
    own = [
        source(start, min(start + length, END), lineage.entries)
        for start, length in draw(st.lists(ranges, min_size=1, max_size=12))
    ]
    dead = []
    for at in draw(st.lists(st.integers(1, END - 2), max_size=3)):
        # Led by an odd epoch, which the lineage does not have, from an offset on.
        epoch = (lineage.epoch_for_offset(at) or 0) + 1
        branch = [*(e for e in entries if e[1] < at), (epoch, at)]
        dead.append(source(max(at - 5, 0), at + 10, segment_leader_epochs(branch)))
    return lineage, draw(st.permutations([*own, *dead]))


@given(histories(), st.integers(0, END - 1))
def test_each_offset_comes_once_or_is_named_as_missing(
    history: tuple[Lineage, list[Source]], start: int
) -> None:
    lineage, sources = history
    pieces, missing = choose_pieces(sources, lineage, start, END)
    taken = [
        (at, lineage.epoch_for_offset(at))
        for piece in pieces
        for at in range(piece.start_offset, piece.end_offset + 1)
    ]
    for piece in pieces:
        for epoch, first, last in piece.source.segment.epoch_ranges():
            for at in range(max(first, piece.start_offset), min(last, piece.end_offset) + 1):
                assert lineage.epoch_for_offset(at) == epoch
    offsets = [at for at, _ in taken]
    assert offsets == sorted(set(offsets))
    absent = {at for first, last in missing for at in range(first, last + 1)}
    assert {at for at in offsets if at >= start} | absent == set(range(start, END))
    assert absent.isdisjoint(offsets)
    served = {
        at
        for each in sources
        for epoch, first, last in each.segment.epoch_ranges()
        for at in range(first, last + 1)
        if lineage.epoch_for_offset(at) == epoch
    }
    assert absent.isdisjoint(served)


@given(histories())
def test_the_lineage_is_that_of_the_leader_with_the_beginning_of_the_segments(
    history: tuple[Lineage, list[Source]],
) -> None:
    lineage, sources = history
    log_start = END // 2
    known = lineage.from_offset(log_start)
    found = lineage_of([known], [each.segment for each in sources])
    for at in range(log_start, END):
        assert found.epoch_for_offset(at) == lineage.epoch_for_offset(at)
