"""Test the metadata in KIP-405's scenarios of followers and leaders.

Brokers A and B copy, crash, are elected uncleanly. What a leader learns from RLMM is looked at:
which copy answers for an offset under each leader epoch, the tier's lineage, where a new leader
goes on copying, and what ListOffsets says. Offsets are the KIP's.
"""

import pytest

from services.api.calls import MutationContext
from services.api.errors import FencedLeaderEpochError
from services.api.lineage import SegmentLineage
from tests.contract.rlmm.partition_states import lineage
from tests.contract.rlmm.segments import DELETE_STARTED, FINISHED, move
from tests.harness.partition_story import PartitionStory

A, B = 1, 2
"""Brokers."""


def test_scenario_1_a_new_empty_follower_builds_its_leader_epochs(story: PartitionStory) -> None:
    epochs = (0, 0), (1, 3), (2, 5), (3, 7)
    story.lead(A, epoch=3)
    seg_0_2 = story.copy(0, 2, {0: 0}, broker=A, leader_epoch=3)
    seg_3_5 = story.copy(3, 5, {1: 3, 2: 5}, broker=A, leader_epoch=3)
    story.report(A, 3, *epochs, local_start=3, end=8)
    # B is told that the leader's log begins at offset 3, in leader epoch 1. The leader epochs
    # before that come with the segment that ends there; RLMM names it.
    assert story.local_log_start == 3
    assert story.found(0, 2) == seg_0_2
    assert story.lineage.before(3 + 1) == lineage((0, 0), (1, 3))
    # As it follows, B raises how far its own disk may be cleaned: up to what is tiered.
    assert story.latest_tiered(8, *epochs) == 5
    # Each offset is found in the leader epoch that it was written in, and in no other.
    assert story.finds(0, range(9)) == [seg_0_2] * 3 + [None] * 6
    assert story.finds(1, range(9)) == [None] * 3 + [seg_3_5] * 2 + [None] * 4
    assert story.finds(2, range(9)) == [None] * 5 + [seg_3_5] + [None] * 3
    assert story.finds(3, range(9)) == [None] * 9
    assert story.rlmm.earliest_log_offset(story.tp).value == 0


def test_scenario_2_an_out_of_sync_follower_catches_up(story: PartitionStory) -> None:
    epochs = (0, 0), (1, 3), (2, 5), (3, 7)
    story.lead(A, epoch=3)
    story.copy(0, 2, {0: 0}, broker=A, leader_epoch=3)
    seg_3_5 = story.copy(3, 5, {1: 3, 2: 5}, broker=A, leader_epoch=3)
    story.report(A, 3, *epochs, local_start=0, end=10)
    # B stands at offset 4 of leader epoch 1, and A still has it: nothing is asked of the tier.
    assert story.latest_tiered(10, *epochs) == 5

    seg_6_8 = story.copy(6, 8, {2: 6, 3: 7}, broker=A, leader_epoch=3)
    story.report(A, 3, *epochs, local_start=9, end=12)
    assert story.latest_tiered(12, *epochs) == 8
    # A's disk begins at 9, in leader epoch 3. B drops what it has, and finds in the tier what it
    # missed and the segment whose leader epochs lead up to there.
    assert (story.found(1, 4), story.found(3, 8)) == (seg_3_5, seg_6_8)
    assert story.lineage.before(9) == lineage(*epochs)
    assert [story.found(epoch, 9) for epoch in range(4)] == [None] * 4
    assert story.rlmm.earliest_log_offset(story.tp).value == 0


def test_scenario_3_both_replicas_crash_and_one_loses_its_last_records(
    story: PartitionStory,
) -> None:
    story.lead(A, epoch=0)
    seg_0_1 = story.copy(0, 1, {0: 0}, broker=A, leader_epoch=0)
    story.report(A, 0, (0, 0), local_start=0, end=3)
    assert story.latest_tiered(3, (0, 0)) == 1

    # B lost offsets 1 and 2 and leads: offset 1 is written anew, in leader epoch 1.
    story.lead(B, epoch=1)
    story.report(B, 1, (0, 0), (1, 1), local_start=0, end=3)
    assert story.lineage == lineage((0, 0), (1, 1))
    # Of what A copied only offset 0 is of B's lineage: B goes on copying at 1, not at 2.
    assert story.latest_tiered(3, (0, 0), (1, 1)) == 0
    seg_1_1 = story.copy(1, 1, {1: 1}, broker=B, leader_epoch=1)
    assert story.latest_tiered(3, (0, 0), (1, 1)) == 1

    # The local segments are gone. Offset 0 is message 0 of leader epoch 0; offset 1 is message 3 of
    # leader epoch 1, also for a consumer that names no epoch. Who asks for 1 in epoch 0 is fenced
    # by B's lineage before RLMM is asked: there A's message 1 is found, as in Kafka's cache.
    assert (story.read(0), story.read(1)) == (seg_0_1, seg_1_1)
    assert (story.found(0, 0), story.found(1, 1)) == (seg_0_1, seg_1_1)
    assert story.found(0, 1) == seg_0_1
    assert (story.found(0, 2), story.found(1, 0), story.found(1, 2)) == (None, None, None)
    [overruled] = story.segments(seg_0_1)
    assert not SegmentLineage(story.lineage, 3).contains(overruled)


def test_scenario_4_an_unclean_election_truncates(story: PartitionStory) -> None:
    story.lead(A, epoch=0)
    seg_0_2 = story.copy(0, 2, {0: 0}, broker=A, leader_epoch=0)
    late = story.begin(3, 3, {0: 3}, broker=A, leader_epoch=0)
    story.report(A, 0, (0, 0), local_start=0, end=4)

    # B, which has offset 0 alone, leads; 1 and 2 are written anew.
    story.lead(B, epoch=1)
    story.report(B, 1, (0, 0), (1, 1), local_start=0, end=3)
    assert story.lineage == lineage((0, 0), (1, 1))
    assert story.latest_tiered(3, (0, 0), (1, 1)) == 0
    seg_0_1 = story.copy(0, 1, {0: 0, 1: 1}, broker=B, leader_epoch=1)
    assert story.latest_tiered(3, (0, 0), (1, 1)) == 1

    # Message 0 may come from either; message 4, at offset 1 of leader epoch 1, from B's alone.
    assert story.read(0) in (seg_0_2, seg_0_1)
    assert story.read(1) == seg_0_1
    assert story.finds(1, [0, 1, 2]) == [None, seg_0_1, None]
    # A comes back and does not know yet that it was deposed. It begins nothing new; it may finish
    # what it began, or clean it up, and deletes nothing that is B's to judge.
    with pytest.raises(FencedLeaderEpochError):
        story.begin(4, 5, {0: 4}, broker=A, leader_epoch=0)
    [finished], of_then = story.segments(seg_0_2), MutationContext(broker_leader_epoch=0)
    with pytest.raises(FencedLeaderEpochError):
        move(story.rlmm, finished, DELETE_STARTED, context=of_then)
    assert story.finish(late, leader_epoch=0).applied
    # What it finished is off the lineage: it is listed, for its deletion, and B's bounds stay.
    assert story.listed(0) == dict.fromkeys([seg_0_2, late, seg_0_1], FINISHED)
    assert story.latest_tiered(3, (0, 0), (1, 1)) == 1
    assert story.rlmm.earliest_log_offset(story.tp).value == 0


def test_scenario_5_logs_diverge_in_the_tier(story: PartitionStory) -> None:
    story.lead(A, epoch=0)
    of_a = story.copy(0, 3, {0: 0}, broker=A, leader_epoch=0)
    story.report(A, 0, (0, 0), local_start=0, end=5)
    assert story.latest_tiered(5, (0, 0)) == 3

    # B, out of sync after offset 1, leads.
    story.lead(B, epoch=1)
    story.report(B, 1, (0, 0), (1, 2), local_start=0, end=5)
    assert story.lineage == lineage((0, 0), (1, 2))
    assert story.latest_tiered(5, (0, 0), (1, 2)) == 1
    of_b = story.copy(0, 3, {0: 0, 1: 2}, broker=B, leader_epoch=1)
    assert story.latest_tiered(5, (0, 0), (1, 2)) == 3
    assert story.finds(1, range(5)) == [None, None, of_b, of_b, None]

    # B is down; A leads again, without knowing leader epoch 1.
    story.lead(A, epoch=2)
    story.report(A, 2, (0, 0), (2, 5), local_start=0, end=7)
    assert story.lineage == lineage((0, 0), (2, 5))
    # In A's lineage leader epoch 0 goes up to 4, and its own copy of it up to 3.
    assert story.latest_tiered(7, (0, 0), (2, 5)) == 3
    rest = story.copy(4, 5, {0: 4, 2: 5}, broker=A, leader_epoch=2)
    assert story.latest_tiered(7, (0, 0), (2, 5)) == 5

    # B comes back without its disk, and builds its leader epochs from the segment that holds the
    # last offset before A's disk begins.
    story.report(A, 2, (0, 0), (2, 5), local_start=6, end=7)
    assert story.found(2, 5) == rest
    assert story.lineage.before(6) == lineage((0, 0), (2, 5))
    # Each offset of A's lineage reads A's messages, also where B's copy came later: in Kafka's
    # cache that one displaces A's in leader epoch 0, and nothing answers for 2 and 3.
    assert [story.read(offset) for offset in range(2, 6)] == [of_a, of_a, rest, rest]
    # Offsets 0 and 1 are the same messages in both copies.
    assert {story.read(0), story.read(1)} <= {of_a, of_b}
    # Who asks for 3 in leader epoch 1 is fenced: that epoch is not of the lineage. Its copy stays
    # listed, for whoever cleans up what no lineage knows.
    assert 1 not in [entry.leader_epoch for entry in story.lineage.entries]
    assert story.listed(1) == {of_b: FINISHED}


@pytest.mark.deep
def test_new_leader_copies_from_the_end_of_the_tier(
    story: PartitionStory,
) -> None:
    story.lead(A, epoch=2)
    story.copy(0, 2, {0: 0}, broker=A, leader_epoch=2)
    story.copy(3, 4, {1: 3}, broker=A, leader_epoch=2)
    under_way = story.begin(5, 8, {1: 5, 2: 6}, broker=A, leader_epoch=2)

    # Nothing of leader epochs 3 and 2 has finished; of 1, up to offset 4.
    story.lead(B, epoch=3)
    epochs = (0, 0), (1, 3), (2, 6), (3, 7)
    assert story.latest_tiered(8, *epochs) == 4
    assert [story.rlmm.highest_offset_for_epoch(story.tp, e).value for e in range(4)] == [
        2,
        4,
        None,
        None,
    ]
    # B's segment that holds offset 5 begins at 4: the copies overlap, and both answer for 4.
    own = story.copy(4, 6, {1: 4, 2: 6}, broker=B, leader_epoch=3)
    assert story.finds(1, range(3, 7)) == ["B", own, own, None]
    assert story.latest_tiered(8, *epochs) == 6
    # A's copy ends late; it reaches beyond B's lineage, which stays what B copies after.
    story.finish(under_way, leader_epoch=2)
    assert story.latest_tiered(8, *epochs) == 6
    assert story.listed(2) == {own: FINISHED, under_way: FINISHED}
    assert story.listed(3) == {}
