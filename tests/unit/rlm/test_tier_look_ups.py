"""Test what a listing of a partition shows without another look-up: leader epochs and segments."""

from dataclasses import replace

import pytest

from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    segment_leader_epochs,
)
from services.rlm.fetch.segment_lookups import ListedSegments
from services.rlm.tier import Tier
from tests.harness.tier import a_topic, segment

(TP,) = a_topic()


def copied(first: int, last: int, *epochs: tuple[int, int]) -> RemoteLogSegmentMetadata:
    """Return a finished segment with these (epoch, first offset)."""
    return replace(
        segment(TP, 0),
        start_offset=first,
        end_offset=last,
        segment_leader_epochs=segment_leader_epochs(epochs),
        state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
    )


ONE_EPOCH = [copied(0, 9, (0, 0)), copied(10, 19, (0, 10))]
TWO_EPOCHS = [copied(0, 9, (0, 0)), copied(10, 19, (0, 10), (1, 15)), copied(20, 29, (1, 20))]
DEPOSED = [copied(0, 9, (0, 0)), copied(10, 19, (1, 10)), copied(10, 29, (0, 10), (2, 20))]


@pytest.mark.parametrize(
    ("segments", "shown"),
    [
        pytest.param(ONE_EPOCH, {0: 0, 9: 0, 10: 0, 19: 0, 20: None}, id="one epoch"),
        pytest.param(TWO_EPOCHS, {20: 1, 15: 1, 14: None, 0: None}, id="the index has the others"),
        # Offset 10 of epoch 1 is in the tier, but not in the lineage of the newest segment.
        pytest.param(DEPOSED, {0: 0, 10: 0, 19: 0, 20: 2}, id="a deposed leader's segment"),
        pytest.param([], {0: None}, id="nothing"),
    ],
)
def test_an_epoch_of_the_newest_segment_holds_for_the_others_that_have_it(
    segments: list[RemoteLogSegmentMetadata], shown: dict[int, int | None]
) -> None:
    tier = Tier(known=True)
    for each in segments:
        tier.add(each)
    assert {offset: tier.epoch_of(offset) for offset in shown} == shown


UNFINISHED = replace(ONE_EPOCH[0], state=RemoteLogSegmentState.DELETE_SEGMENT_STARTED)


@pytest.mark.parametrize(
    ("segments", "offset", "found"),
    [
        pytest.param(ONE_EPOCH, 9, [0], id="its last offset"),
        pytest.param(ONE_EPOCH, 10, [1], id="its first offset"),
        pytest.param(ONE_EPOCH, 20, [], id="behind the last"),
        pytest.param(DEPOSED, 12, [2, 1], id="one of each epoch"),
        pytest.param([*ONE_EPOCH, copied(5, 9, (0, 5))], 7, [], id="two of one epoch"),
        pytest.param([copied(0, 9, (0, 0)), copied(5, 6, (0, 5))], 8, [], id="a hole for RLMM"),
        pytest.param([UNFINISHED], 5, [], id="being deleted"),
        pytest.param([copied(0, 9, (0, 4))], 3, [], id="below its first epoch"),
    ],
)
def test_a_listing_has_the_segment_that_a_look_up_finds(
    segments: list[RemoteLogSegmentMetadata], offset: int, found: list[int]
) -> None:
    listed = ListedSegments(offset)
    for each in sorted(segments, key=lambda each: each.start_offset):
        listed.add(each)
    assert list(listed.segments()) == [segments[number] for number in found]
