"""What RLM remembers of searches for transaction indexes is what RLMM finds."""

import random
from typing import Any

from services.api.ids import TopicIdPartition
from services.api.segments import RemoteLogSegmentMetadata, segment_leader_epochs
from services.rlm.fetch.segment_lookups import SegmentLookUps
from tests.harness.ship_stack import Stack
from tests.harness.tier import OFFSETS, SmallTier, a_topic, segment
from tests.harness.troubles import SilentRlmm

EPOCHS = range(4)


def some_segments(tp: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
    """Segments of one or two epochs, some of them twice, one in three with transactions."""
    made = []
    for number in range(12):
        epoch, start = number // 4, number * OFFSETS
        entries = {epoch: start}
        if number % 4 == 0 and number:
            entries = {epoch - 1: start, epoch: start + 9}
        for copy in range(1 + (number % 5 == 0)):
            made.append(
                segment(
                    tp,
                    number,
                    segment_leader_epochs=segment_leader_epochs(list(entries.items())),
                    broker_leader_epoch=epoch,
                    txn_idx_empty=(number + copy) % 3 != 0,
                )
            )
    return made


def test_searches_find_what_rlmm_finds_in_any_order(stack: Stack) -> None:
    (tp,) = a_topic()
    tier = SmallTier(stack.rsm, stack.rlmm)
    for each in some_segments(tp):
        tier.copy(each)
    questions = [(epoch, offset) for epoch in EPOCHS for offset in range(0, 12 * OFFSETS + 50, 33)]
    truth = {each: stack.rlmm.next_segment_with_txn_index(tp, *each) for each in questions}
    assert len({found.value for found in truth.values()}) > 4
    [revision] = {found.revision for found in truth.values()}

    shuffled = list(questions)
    random.Random(7).shuffle(shuffled)
    searches = []
    for order in (questions, questions[::-1], shuffled):
        rlmm: Any = SilentRlmm(stack.rlmm)
        look_ups = SegmentLookUps(rlmm)
        for question in order:
            assert look_ups.next_with_transactions(tp, *question, revision) == truth[question]
        searches.append(rlmm.searches)
    answers = {(epoch, found.value) for (epoch, _), found in truth.items()}
    assert searches[0] == len(answers) < searches[2] < searches[1] == len(questions)


def test_nothing_is_remembered_over_a_change(stack: Stack) -> None:
    (tp,) = a_topic()
    tier = SmallTier(stack.rsm, stack.rlmm)
    tier.copy(segment(tp, 0, txn_idx_empty=True))
    rlmm: Any = SilentRlmm(stack.rlmm)
    look_ups = SegmentLookUps(rlmm)
    before = look_ups.next_with_transactions(tp, 0, 0)
    assert before.value is None
    tier.copy(segment(tp, 1, txn_idx_empty=False))
    assert look_ups.next_with_transactions(tp, 0, 0, before.revision) == before
    # Another offset is asked for, and shows the change: what was found before counts no longer.
    after = look_ups.next_with_transactions(tp, 1, 0, before.revision)
    assert after.revision > before.revision
    again = look_ups.next_with_transactions(tp, 0, 0, before.revision)
    assert again.revision == after.revision
    assert again.value is not None
    searches = rlmm.searches
    assert look_ups.next_with_transactions(tp, 0, 0, after.revision) == again
    assert rlmm.searches == searches


def test_many_searches_of_one_partition_are_bounded(stack: Stack) -> None:
    (tp,) = a_topic()
    SmallTier(stack.rsm, stack.rlmm).copy(segment(tp, 0))
    rlmm: Any = SilentRlmm(stack.rlmm)
    look_ups = SegmentLookUps(rlmm)
    revision = look_ups.next_with_transactions(tp, 0, 0).revision
    for epoch in range(1, 300):
        look_ups.next_with_transactions(tp, epoch, 0, revision)
    assert rlmm.searches == 300
    look_ups.next_with_transactions(tp, 299, 0, revision)
    assert rlmm.searches == 300
    look_ups.next_with_transactions(tp, 0, 0, revision)
    assert rlmm.searches == 301


def test_searches_of_all_partitions_are_bounded_and_the_last_used_stay(stack: Stack) -> None:
    tps = a_topic(partitions=3)
    tier = SmallTier(stack.rsm, stack.rlmm)
    for tp in tps:
        tier.copy(segment(tp, 0))
    rlmm: Any = SilentRlmm(stack.rlmm)
    look_ups = SegmentLookUps(rlmm, max_results=2)

    def ask(tp: TopicIdPartition) -> int:
        """Return how often RLMM was asked."""
        before = rlmm.searches
        look_ups.next_with_transactions(tp, 0, 0, stack.rlmm.partition_state(tp).revision)
        return int(rlmm.searches - before)

    first, second, third = tps
    assert [ask(tp) for tp in (first, second, first, third)] == [1, 1, 0, 1]
    assert [ask(tp) for tp in (first, third, second)] == [0, 0, 1]
