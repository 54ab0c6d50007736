"""Test which complete copies of the same offsets count."""

import pytest

from services.api.ids import RemoteLogSegmentId, random_uuid
from services.api.segments import RemoteLogSegmentMetadata, segment_leader_epochs
from services.workflows.bucket_copies import BucketCopy, superseded
from tests.harness.tier import a_topic

TP = a_topic("orders")[0]


def copy(
    start: int,
    end: int,
    epochs: dict[int, int] | None = None,
    *,
    leader: int | None = 0,
    at: int = 0,
    known: bool = False,
) -> BucketCopy:
    metadata = RemoteLogSegmentMetadata(
        RemoteLogSegmentId(TP, random_uuid()),
        start,
        end,
        max_timestamp_ms=0,
        broker_id=1,
        event_timestamp_ms=0,
        segment_leader_epochs=segment_leader_epochs(list((epochs or {0: start}).items())),
        segment_size_in_bytes=1,
        broker_leader_epoch=leader,
    )
    return BucketCopy(metadata, at, known)


def left_out(*copies: BucketCopy) -> set[int]:
    return set(superseded(copies))


def test_the_higher_leader_epoch_counts_then_the_later_manifest() -> None:
    assert left_out(copy(0, 9, leader=2, at=1), copy(0, 9, leader=1, at=2)) == {1}
    assert left_out(copy(0, 9, at=1), copy(0, 9, at=2)) == {0}
    assert left_out(copy(0, 9, leader=None, at=2), copy(0, 9, at=1)) == {0}


def test_of_equal_copies_the_first_counts() -> None:
    assert left_out(copy(0, 9), copy(0, 9), copy(0, 9)) == {1, 2}


def test_what_rlmm_has_counts_before_everything_else() -> None:
    assert left_out(copy(0, 9, known=True), copy(0, 9, leader=5, at=9)) == {1}
    assert left_out(copy(0, 9, known=True), copy(0, 9, known=True)) == set()


@pytest.mark.parametrize(
    "other",
    [
        copy(0, 9, {1: 0}, at=9),
        copy(0, 9, {0: 0, 1: 5}, at=9),
        copy(0, 8, at=9),
        copy(1, 9, at=9),
        copy(5, 14, at=9),
        copy(10, 19, at=9),
    ],
    ids=["epoch", "part of the epoch", "end", "start", "overlap", "next"],
)
def test_no_copy_is_left_out_that_has_offsets_which_the_better_one_has_not(
    other: BucketCopy,
) -> None:
    assert left_out(copy(0, 9), other) == set()


def test_a_longer_copy_of_the_same_epochs_is_enough() -> None:
    assert left_out(copy(5, 9), copy(0, 19, at=1)) == {0}
    assert left_out(copy(0, 19, at=1), copy(5, 9, at=2)) == set()


def test_a_chain_of_attempts_leaves_only_the_best() -> None:
    first, second, best, next_one = (*(copy(0, 9, at=at) for at in (1, 2, 3)), copy(10, 19))
    assert superseded([first, second, best, next_one]) == {0: best, 1: best}
