"""Test leader epochs: look-up, ranges, the checkpoint file, and merging reports."""

import pytest

from services.api.errors import InvalidRequestError
from services.api.lineage import EpochEnd, Lineage, checkpoint_text, parse_checkpoint
from services.api.segments import segment_leader_epochs


def lineage(*pairs: tuple[int, int]) -> Lineage:
    return Lineage(segment_leader_epochs(pairs))


THREE = lineage((0, 0), (1, 100), (4, 200))


@pytest.mark.parametrize(
    ("offset", "epoch"), [(0, 0), (99, 0), (100, 1), (199, 1), (200, 4), (10**6, 4)]
)
def test_an_offset_belongs_to_the_last_epoch_that_began_at_or_before_it(
    offset: int, epoch: int
) -> None:
    assert THREE.epoch_for_offset(offset) == epoch


def test_an_offset_before_the_first_known_epoch_has_none() -> None:
    assert lineage((3, 50)).epoch_for_offset(49) is None


@pytest.mark.parametrize(
    ("base", "following", "expected"),
    [
        (0, 150, [(0, 0), (1, 100)]),
        (50, 100, [(0, 50)]),
        (150, 300, [(1, 150), (4, 200)]),
        (200, 201, [(4, 200)]),
    ],
)
def test_a_segments_epochs_begin_at_its_base(
    base: int, following: int, expected: list[tuple[int, int]]
) -> None:
    assert THREE.between(base, following) == segment_leader_epochs(expected)
    assert lineage().between(base, following) == ()


def test_the_leader_epoch_index_holds_the_whole_history_up_to_the_segments_end() -> None:
    # RemoteLogManagerTest: segment [0-149] of epochs {0:0, 1:100, 2:200}.
    history = lineage((0, 0), (1, 100), (2, 200)).before(150)
    assert checkpoint_text(history.entries) == "0\n2\n0 0\n1 100\n"


def test_the_checkpoint_text_reads_back() -> None:
    assert parse_checkpoint(checkpoint_text(THREE.entries)) == THREE
    assert parse_checkpoint("0\n0\n") == Lineage()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1\n0\n",
        "0\n",
        "0\n2\n0 0\n",
        "0\n1\n0\n",
        "0\n1\nx 0\n",
        "0\n2\n1 0\n0 5\n",
        "0\n1\n-1 0\n",
    ],
)
def test_a_malformed_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^leader[ _]epochs: "):
        parse_checkpoint(text)


@pytest.mark.parametrize(("epoch", "end"), [(0, 100), (1, 200), (2, 200), (4, 500), (9, 500)])
def test_an_epoch_ends_where_the_next_higher_one_begins(epoch: int, end: int) -> None:
    assert THREE.end_offset_for(epoch, 500) == end


@pytest.mark.parametrize(
    ("reported", "merged"),
    [
        # The broker's retention truncated the beginning: the stored one stays.
        ([(1, 150), (4, 200)], [(0, 0), (1, 100), (4, 200)]),
        ([(4, 300)], [(0, 0), (1, 100), (4, 200)]),
        # New epochs are added.
        ([(0, 0), (1, 100), (4, 200), (6, 400)], [(0, 0), (1, 100), (4, 200), (6, 400)]),
        # An unclean election diverges after epoch 0: the broker's word counts from there on.
        ([(0, 0), (2, 80)], [(0, 0), (2, 80)]),
        ([], [(0, 0), (1, 100), (4, 200)]),
    ],
)
def test_a_report_is_merged_into_the_stored_history(
    reported: list[tuple[int, int]], merged: list[tuple[int, int]]
) -> None:
    assert THREE.merged_with_report(lineage(*reported)) == lineage(*merged)


@pytest.mark.parametrize(
    ("offset", "rest"),
    [
        # LeaderEpochFileCacheTest, truncateFromStart of {2:6, 3:8, 4:11}.
        (1, [(2, 6), (3, 8), (4, 11)]),
        (6, [(2, 6), (3, 8), (4, 11)]),
        (7, [(2, 7), (3, 8), (4, 11)]),
        (8, [(3, 8), (4, 11)]),
        (9, [(3, 9), (4, 11)]),
        (11, [(4, 11)]),
        (15, [(4, 15)]),
    ],
)
def test_cut_at_an_offset_the_epoch_that_holds_it_begins_there(
    offset: int, rest: list[tuple[int, int]]
) -> None:
    assert lineage((2, 6), (3, 8), (4, 11)).from_offset(offset) == lineage(*rest)


def test_cut_at_start_of_several_epochs_keeps_the_last() -> None:
    assert lineage((0, 0), (1, 50), (2, 50), (3, 90)).from_offset(50) == lineage((2, 50), (3, 90))


def test_an_empty_lineage_stays_empty_when_it_is_cut() -> None:
    assert Lineage().from_offset(5) == Lineage()


def test_a_cut_lineage_answers_the_same_from_the_cut_on() -> None:
    cut = THREE.from_offset(150)
    assert [cut.epoch_for_offset(o) for o in (150, 199, 200)] == [1, 1, 4]
    assert cut.epoch_for_offset(149) is None
    assert cut.between(150, 300) == THREE.between(150, 300)


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (0, EpochEnd(0, 100)),
        (1, EpochEnd(1, 200)),
        (2, EpochEnd(1, 200)),
        (3, EpochEnd(1, 200)),
        (4, EpochEnd(4, 250)),
        (5, None),
    ],
)
def test_an_epoch_ends_where_the_next_one_begins(epoch: int, expected: EpochEnd | None) -> None:
    assert THREE.end_of(epoch, 250) == expected


def test_an_epoch_before_all_ends_where_the_first_begins() -> None:
    assert lineage((3, 50), (4, 60)).end_of(1, 70) == EpochEnd(1, 50)


def test_without_epochs_no_end_is_known() -> None:
    assert Lineage().end_of(0, 70) is None
