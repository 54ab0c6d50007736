"""What RLM remembers of searches for transaction indexes is what RLMM finds."""

import random
from collections import Counter
from typing import Any, cast

from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import IsolationLevel
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    segment_leader_epochs,
)
from services.rlm.fetch.reads import ReadLimits
from services.rlm.fetch.segment_lookups import ListedSegments, SegmentLookUps
from services.rlm.manager import RlmLimits
from tests.harness.doors import answered, connected_socket, fetch_of, framed, serving_consumers
from tests.harness.published import growth
from tests.harness.ship_stack import Stack, fetch
from tests.harness.tier import OFFSETS, SmallTier, a_topic, segment
from tests.harness.troubles import SilentRlmm
from tests.harness.wrapper import Counted
from tests.unit.rlm.kafka_bytes import NAME, batch, three_segments

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
EPOCHS = range(4)
PATIENT = RlmLimits(read=ReadLimits(wait_s=60.0, recent_s=60.0))


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


def test_a_listing_shows_what_searches_from_an_offset_on_find(stack: Stack) -> None:
    (tp,) = a_topic()
    tier = SmallTier(stack.rsm, stack.rlmm)
    for each in some_segments(tp):
        tier.copy(each)
    page = stack.rlmm.list_remote_log_segments(tp)
    for offset in range(0, 12 * OFFSETS + 50, 33):
        listed = ListedSegments(offset)
        for each in page.segments:
            listed.add(each)
        searches = listed.searches()
        for epoch in EPOCHS:
            found = stack.rlmm.next_segment_with_txn_index(tp, epoch, offset)
            assert found.value == searches.get(epoch)
            assert found.revision == page.revision


def test_a_listing_with_an_epoch_that_has_no_records_shows_nothing(stack: Stack) -> None:
    """RLMM decides by what else it knows of that epoch."""
    (tp,) = a_topic()
    listed = ListedSegments(0)
    listed.add(segment(tp, 0, state=FINISHED, txn_idx_empty=False))
    assert set(listed.searches()) == {0}
    epochs = segment_leader_epochs([(0, OFFSETS // 2), (1, OFFSETS)])
    listed.add(segment(tp, 1, state=FINISHED, segment_leader_epochs=epochs, txn_idx_empty=False))
    assert not listed.searches()


def test_a_committed_read_in_order_calls_rlmm_as_often_as_an_uncommitted_one(
    stack: Stack,
) -> None:
    three_segments(stack.log_dir)
    stack.ship()

    def calls(isolation: IsolationLevel) -> Counter[str]:
        rlmm = Counted(stack.rlmm)
        rlm = stack.tier_reader(rlmm=cast(Any, rlmm), limits=PATIENT)
        for offset in (0, 5, 10, 15):
            (part,) = fetch(rlm, offset, max_bytes=1, isolation=isolation)
            assert part.record_batches == batch(offset, 5)
        return rlmm.calls

    # One listing of the partition, and nothing for the second segment that it shows, too.
    assert calls(IsolationLevel.READ_COMMITTED) == calls(IsolationLevel.READ_UNCOMMITTED)


def test_a_committed_consumer_of_the_listener_causes_as_many_calls(stack: Stack) -> None:
    three_segments(stack.log_dir)
    stack.ship()

    def calls(isolation_level: int) -> Counter[str]:
        rlmm = Counted(stack.rlmm)
        rlm = stack.tier_reader(rlmm=cast(Any, rlmm), limits=PATIENT)
        with serving_consumers(rlm) as address, connected_socket(address) as client:
            for offset in (0, 5, 10, 15):
                request = fetch_of(NAME.topic_id, offset, max_wait_ms=60_000)
                request.isolation_level = isolation_level
                client.sendall(framed(request))
                assert batch(offset, 5) in answered(client)
        return rlmm.calls

    assert calls(isolation_level=1) == calls(isolation_level=0)


def test_reads_for_which_memory_suffices_are_prepared_in_their_own_thread(stack: Stack) -> None:
    three_segments(stack.log_dir)
    stack.ship()
    rlm = stack.tier_reader(limits=PATIENT)
    in_pool = growth("sediment_rlm_remote_read_seconds_count")
    for isolation in IsolationLevel:
        for offset in (0, 5, 10, 15, 5):
            (part,) = fetch(rlm, offset, max_bytes=1, isolation=isolation)
            assert part.record_batches == batch(offset, 5)
        # The first read lists the partition; the last one needs an index, the first time; what
        # READ_COMMITTED needs besides is the newest segment's producer snapshot.
        assert in_pool() == [2 if isolation is IsolationLevel.READ_UNCOMMITTED else 3]
