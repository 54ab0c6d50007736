"""Test which segments belong to a partition's lineage, by RemoteLogManagerTest and more rows."""

import pytest

from services.api.errors import InvalidRequestError
from services.api.lineage import Lineage, SegmentLineage, without_empty_epochs
from services.api.partitions import log_end_offset
from services.api.segments import RemoteLogSegmentState, segment_leader_epochs
from tests.unit.api.retention_partition import (
    DELETING,
    FINISHED,
    STARTED,
    Epochs,
    lineage,
    partition,
    segment,
)

HISTORY = lineage((0, 0), (1, 10), (2, 20), (3, 30), (4, 40), (5, 50), (7, 70))
LOG_END = 90


@pytest.mark.parametrize(
    ("epochs", "with_records"),
    [
        (
            [(0, 0), (1, 0), (2, 0), (3, 30), (4, 40), (5, 60), (6, 60), (7, 70), (8, 70)],
            [(2, 0), (3, 30), (4, 40), (6, 60), (8, 70)],
        ),
        ([(0, 0), (1, 10)], [(0, 0), (1, 10)]),
        ([(3, 7)], [(3, 7)]),
        ([], []),
    ],
)
def test_epoch_that_starts_with_the_next_one_has_no_records(
    epochs: Epochs, with_records: Epochs
) -> None:
    found = without_empty_epochs(segment_leader_epochs(epochs))
    assert found == segment_leader_epochs(with_records)


@pytest.mark.parametrize(
    ("epochs", "start", "end"),
    [
        ([(1, 15), (2, 20), (3, 30)], 15, 35),
        ([(1, 15)], 15, 19),
        ([(0, 0)], 0, 5),
        ([(7, 70)], 70, 75),
        ([(1, 15), (2, 20)], 15, 29),
        # The last offset of the log.
        ([(7, 80)], 80, 89),
        # The first epoch of the lineage may begin anywhere: the log start cut it.
        ([(0, 0), (1, 10)], 0, 19),
    ],
)
def test_a_segment_that_follows_the_lineage_is_within_it(
    epochs: Epochs, start: int, end: int
) -> None:
    assert SegmentLineage(HISTORY, LOG_END).contains(segment(start, end, epochs))


def test_an_epoch_without_records_is_not_looked_for() -> None:
    with_it, without_it = [(2, 20), (3, 30), (4, 30)], [(2, 20), (4, 30)]
    for history in (lineage(*with_it), lineage(*without_it)):
        known = SegmentLineage(history, LOG_END)
        assert known.contains(segment(20, 39, with_it))
        assert known.contains(segment(20, 39, without_it))


@pytest.mark.parametrize(
    ("epochs", "start", "end", "because"),
    [
        ([(5, 55), (6, 60), (7, 70)], 55, 85, "epoch 6 is not known"),
        ([(1, 5), (2, 20)], 5, 25, "it begins before its epoch does"),
        ([(1, 15), (2, 20)], 15, 35, "it ends beyond epoch 2"),
        ([(1, 15)], 15, 20, "it ends where epoch 2 begins"),
        ([(6, 60)], 60, 65, "its only epoch is not known"),
        ([(8, 80)], 80, 85, "its epoch is after the last one"),
        ([(1, 15), (3, 30)], 15, 35, "it leaves out epoch 2"),
        ([(1, 15), (2, 22)], 15, 29, "its epoch 2 begins elsewhere"),
        ([(7, 70)], 70, 90, "it ends where the log does not reach"),
    ],
)
def test_a_segment_of_another_history_is_not_within_the_lineage(
    epochs: Epochs, start: int, end: int, because: str
) -> None:
    assert not SegmentLineage(HISTORY, LOG_END).contains(segment(start, end, epochs)), because


@pytest.mark.parametrize(
    ("epochs", "start", "end", "is_within"),
    [
        # As in Kafka's comment on overlapping segments: the first went, and the log start with it.
        ([(5, 14), (7, 15), (9, 100)], 14, 150, True),
        ([(7, 15)], 15, 99, True),
        ([(5, 14), (7, 15), (9, 101)], 14, 150, False),
        ([(5, 10)], 10, 14, False),
    ],
)
def test_offsets_before_a_cut_lineage_are_not_compared(
    epochs: Epochs, start: int, end: int, is_within: bool
) -> None:
    cut = lineage((5, 10), (7, 15), (9, 100)).from_offset(51)
    assert cut == lineage((7, 51), (9, 100))
    assert SegmentLineage(cut, 200).contains(segment(start, end, epochs)) is is_within


@pytest.mark.parametrize(
    ("epochs", "is_known"),
    [([(0, 0), (2, 5), (6, 60)], True), ([(6, 60)], True), ([(3, 10)], False), ([(7, 70)], False)],
)
def test_a_segment_is_known_that_has_any_epoch_with_records(epochs: Epochs, is_known: bool) -> None:
    known = SegmentLineage(lineage((2, 0), (3, 10), (4, 10), (6, 60)), LOG_END)
    assert known.knows(segment(epochs[0][1], 75, epochs)) is is_known


def test_without_a_lineage_nothing_can_be_judged() -> None:
    with pytest.raises(InvalidRequestError, match="lineage: must not be empty"):
        SegmentLineage(Lineage(), 0)


@pytest.mark.parametrize(
    ("leader_epoch", "state", "epochs", "expected"),
    [
        # Copied by the leader after it reported.
        (1, FINISHED, [(1, 100)], 200),
        (1, FINISHED, [(0, 90), (1, 100)], 200),
        # Not yet, or no longer, there.
        (1, STARTED, [(1, 100)], 150),
        (1, DELETING, [(1, 100)], 150),
        # What an earlier leader wrote beyond the reported end was truncated.
        (1, FINISHED, [(0, 100)], 150),
        (2, FINISHED, [(1, 100)], 150),
        # An epoch that the lineage does not have yet.
        (2, FINISHED, [(2, 150)], 150),
    ],
)
def test_log_end_includes_segments_copied_after_the_report(
    leader_epoch: int, state: RemoteLogSegmentState, epochs: Epochs, expected: int
) -> None:
    known = partition(lineage((0, 0), (1, 100)), 150, leader_epoch=leader_epoch)
    copied = segment(epochs[0][1], 199, epochs, state=state)
    assert known.report is not None
    assert log_end_offset([copied], known.lineage, known.report) == expected


def test_the_log_end_never_falls_below_the_reported_one() -> None:
    known = partition(lineage((0, 0)), 150)
    assert known.report is not None
    assert log_end_offset([segment(0, 99)], known.lineage, known.report) == 150
    assert log_end_offset([], known.lineage, known.report) == 150
