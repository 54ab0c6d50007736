"""Violations: each function writes a history and returns the one record that no order explains.

Without that record the history is legal, so the checker refuses it for nothing else.
"""

from collections.abc import Callable
from dataclasses import replace

from services.api.errors import (
    FencedLeaderEpochError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
)
from services.api.remote_log_metadata_manager import SegmentPage
from tests.deep.linearizability.operations import (
    Answered,
    Changed,
    HighestOffset,
    Listed,
    ListSegments,
    LogSize,
    LookUp,
    NextWithTxnIndex,
    RaiseLogStart,
    Record,
    ResetLeaderEpoch,
    Undelete,
    UpdateBatch,
)
from tests.deep.linearizability.stories import (
    LOST,
    OTHER_BROKER,
    Story,
    add,
    announce,
    applied,
    asked_as,
    delete,
    item,
    listed,
    move,
    refused,
    repeated,
    segment,
)
from tests.deep.model.kafka_cache import DELETE_FINISHED, DELETE_STARTED, FINISHED
from tests.deep.model.partition import MARKED, PARTITION_FINISHED, PARTITION_STARTED

Violation = Callable[[Story], Record]
FIRST = segment(1)


def copied(story: Story, *numbers: int) -> None:
    """Segments of ten offsets each, one after another, finished."""
    for number in numbers:
        story.record(add(number, 10 * number, 10 * number + 9))
        story.record(move(number, FINISHED))


def lost_update(story: Story) -> Record:
    story.record(add(1))
    story.record(move(1, FINISHED))
    story.record(add(2))
    return story.record(ListSegments(), listed(3, FIRST, segment(2)))


def stale_read(story: Story) -> Record:
    story.record(add(1))
    story.record(move(1, FINISHED))
    return story.record(LookUp(0, 5), Answered(None, 1))


def read_of_an_uncommitted_change(story: Story) -> Record:
    story.record(add(1))
    story.record(add(2, why=asked_as("late", expected_revision=0)))
    return story.record(ListSegments(), listed(2, FIRST, segment(2)))


def read_of_a_change_that_nobody_has_asked_for_yet(story: Story) -> Record:
    story.record(add(1), at=(10, 20))
    return story.record(ListSegments(), at=(1, 5), client="b")


def revision_used_twice(story: Story) -> Record:
    first = story.record(add(1), at=(1, 10))
    story.record(add(2), applied(1), at=(1, 10), client="b")
    return first


def gap_between_revisions(story: Story) -> Record:
    story.record(add(1))
    return story.record(add(2), applied(3))


def revision_goes_backwards_between_two_reads(story: Story) -> Record:
    story.record(add(1))
    story.record(add(2), at=(10, 100))
    story.record(ListSegments(), at=(20, 30), client="b")
    return story.record(ListSegments(), listed(1, FIRST), at=(40, 50), client="b")


def order_against_the_clock_across_clients(story: Story) -> Record:
    story.record(add(1))
    story.record(add(4), LOST)
    early = story.record(add(2), applied(3), at=(10, 12), client="b")
    story.record(add(3), applied(2), at=(20, 30), client="c")
    return early


def read_of_another_client_older_than_what_was_acknowledged(story: Story) -> Record:
    story.record(add(1), client="a")
    return story.record(ListSegments(), refused(RemoteResourceNotFoundError), client="b")


def applied_twice_under_one_request_id(story: Story) -> Record:
    why = asked_as("once")
    story.record(RaiseLogStart(0, why), refused(RemoteResourceNotFoundError))
    copied(story, 0)
    story.record(RaiseLogStart(5, why))
    return story.record(RaiseLogStart(5, why), applied(4))


def repeat_answered_with_another_revision(story: Story) -> Record:
    why = asked_as("once")
    story.record(add(1, why=why))
    story.record(add(2))
    return story.record(add(1, why=why), applied(2))


def repeat_under_its_request_id_that_says_not_applied(story: Story) -> Record:
    why = asked_as("once")
    story.record(add(1, why=why), LOST)
    story.record(ListSegments())
    return story.record(add(1, why=why), repeated(1))


def lost_change_that_its_repeat_makes_again(story: Story) -> Record:
    why = asked_as("once")
    story.record(add(1, why=why), LOST)
    story.record(ListSegments())
    return story.record(add(1, why=why), applied(2))


def request_id_taken_with_another_body(story: Story) -> Record:
    story.record(add(1, why=asked_as("taken")))
    return story.record(add(2, why=asked_as("taken")), applied(2))


def refusal_that_no_state_justifies(story: Story) -> Record:
    story.record(add(1))
    return story.record(move(1, FINISHED), refused(InvalidStateTransitionError), happens=False)


def refusal_justified_only_before_it_was_asked(story: Story) -> Record:
    story.record(announce(0))
    story.record(add(1))
    return story.record(move(1, FINISHED), refused(RemoteResourceNotFoundError), happens=False)


def refusal_justified_only_after_it_was_answered(story: Story) -> Record:
    story.record(announce(0))
    story.record(delete(MARKED), at=(20, 30))
    return story.record(add(1), at=(10, 15), client="b")


def look_up_that_finds_a_segment_whose_deletion_started(story: Story) -> Record:
    copied(story, 0)
    found = story.record(LookUp(0, 5)).reply
    assert isinstance(found, Answered)
    story.record(move(0, DELETE_STARTED))
    return story.record(LookUp(0, 5), replace(found, revision=3))


def list_without_an_acknowledged_segment(story: Story) -> Record:
    story.record(add(1))
    story.record(add(2, 10, 19))
    return story.record(ListSegments(), listed(2, FIRST))


def highest_offset_that_falls(story: Story) -> Record:
    copied(story, 0, 1)
    story.record(move(1, DELETE_STARTED))
    story.record(move(1, DELETE_FINISHED))
    return story.record(HighestOffset(0), Answered(9, 6))


def fence_ignored_by_add(story: Story) -> Record:
    story.record(announce(5))
    return story.record(add(1, why=asked_as("old", broker_leader_epoch=4)), applied(2))


def fence_ignored_by_deletion(story: Story) -> Record:
    copied(story, 0)
    story.record(announce(5))
    why = asked_as("old", broker_leader_epoch=4)
    return story.record(move(0, DELETE_STARTED, why=why), applied(4))


def two_winners_of_one_move(story: Story) -> Record:
    story.record(add(1))
    story.record(move(1, FINISHED), at=(10, 20))
    return story.record(move(1, FINISHED), applied(3), at=(10, 20), client="b")


def no_winner_of_a_move(story: Story) -> Record:
    story.record(add(1))
    why = asked_as("once")  # without a request id its own first attempt may have been lost
    return story.record(move(1, FINISHED, why=why), repeated(2), happens=False)


def add_after_the_mark_of_deletion(story: Story) -> Record:
    story.record(delete(MARKED))
    return story.record(add(1), applied(2))


def deleted_partition_that_can_be_read(story: Story) -> Record:
    for state in (MARKED, PARTITION_STARTED, PARTITION_FINISHED):
        story.record(delete(state))
    return story.record(ListSegments(), listed(3))


def deletion_of_a_partition_that_is_not_marked(story: Story) -> Record:
    story.record(announce(0))
    return story.record(delete(PARTITION_STARTED), applied(2))


def deletion_that_finishes_while_segments_remain(story: Story) -> Record:
    story.record(add(1))
    story.record(delete(MARKED))
    story.record(delete(PARTITION_STARTED))
    return story.record(delete(PARTITION_FINISHED), applied(4))


def read_your_writes_broken(story: Story) -> Record:
    story.record(announce(0))
    story.record(add(1))
    return story.record(ListSegments(), listed(1))


def lost_change_that_happened_and_then_did_not(story: Story) -> Record:
    story.record(announce(0))
    story.record(add(1), LOST)
    story.record(ListSegments(), client="b")
    return story.record(ListSegments(), listed(1), client="c")


def lost_change_that_happened_before_it_was_asked(story: Story) -> Record:
    story.record(announce(0))
    story.record(add(1), LOST, at=(20, 30))
    return story.record(ListSegments(), at=(10, 15), client="b")


def lost_change_that_happened_twice(story: Story) -> Record:
    story.record(announce(0))
    story.record(add(1), LOST)
    return story.record(ListSegments(), listed(3, FIRST))


def two_lost_changes_seen_in_both_orders(story: Story) -> Record:
    story.record(announce(0))
    story.record(add(1), LOST, at=(10, 11))
    story.record(add(2), LOST, at=(10, 11))
    one = story.record(ListSegments(), listed(2, FIRST), at=(10, 40), client="b")
    story.record(ListSegments(), listed(2, segment(2)), at=(10, 40), client="c")
    return one


def expected_revision_ignored(story: Story) -> Record:
    story.record(add(1))
    return story.record(add(2, why=asked_as("late", expected_revision=0)), applied(2))


def half_a_batch_seen(story: Story) -> Record:
    copied(story, 0, 1)
    batch = UpdateBatch((item(0, DELETE_STARTED), item(1, DELETE_STARTED)))
    half = Story()
    copied(half, 0, 1)
    half.record(move(0, DELETE_STARTED))
    story.record(batch, at=(10, 50))
    page = half.record(ListSegments()).reply
    return story.record(ListSegments(), page, at=(20, 30), client="b")


def batch_in_another_order_than_asked(story: Story) -> Record:
    story.record(add(1))
    story.record(add(2))
    batch = UpdateBatch((item(1, FINISHED), item(2, FINISHED)))
    return story.record(batch, applied(4, 3), happens=False)


def batch_whose_refused_item_took_a_revision(story: Story) -> Record:
    story.record(add(1))
    batch = UpdateBatch((item(2, FINISHED), item(1, FINISHED)))
    refusal = refused(RemoteResourceNotFoundError)
    return story.record(batch, Changed((refusal, *applied(3).outcomes)), happens=False)


def size_of_finished_segments_only(story: Story) -> Record:
    copied(story, 0)
    story.record(add(1, 10, 19))
    return story.record(LogSize(0), Answered(100, 3))


def update_that_erases_custom_metadata(story: Story) -> Record:
    story.record(add(1))
    story.record(move(1, FINISHED, custom_metadata=b"where"))
    story.record(move(1, DELETE_STARTED))
    gone = replace(FIRST, state=DELETE_STARTED, event_timestamp_ms=6_000)
    return story.record(ListSegments(), listed(3, gone))


def displaced_segment_found_before_the_one_that_displaced_it(story: Story) -> Record:
    story.record(add(1))
    story.record(move(1, FINISHED))
    found = story.record(LookUp(0, 5)).reply
    assert isinstance(found, Answered)
    story.record(add(2))
    story.record(move(2, FINISHED))
    return story.record(LookUp(0, 5), replace(found, revision=4))


def transaction_index_passed_over(story: Story) -> Record:
    story.record(add(1, 0, 9))
    story.record(move(1, FINISHED))
    story.record(add(2, 10, 19))
    story.record(move(2, FINISHED))
    found = story.record(LookUp(0, 15)).reply
    return story.record(NextWithTxnIndex(0, 5), found)


def log_start_that_falls(story: Story) -> Record:
    copied(story, 0)
    story.record(RaiseLogStart(5))
    page = story.record(ListSegments()).reply
    assert isinstance(page, Listed)
    return story.record(ListSegments(), Listed(replace(page.page, log_start_offset=0)))


def not_modified_since_a_revision_that_is_not_the_present_one(story: Story) -> Record:
    story.record(add(1))
    story.record(add(2))
    page = SegmentPage((), "", 1, not_modified=True)
    return story.record(ListSegments(if_revision_not=1), Listed(page))


def tombstone_that_comes_back(story: Story) -> Record:
    story.record(add(1))
    story.record(move(1, DELETE_STARTED))
    story.record(move(1, DELETE_FINISHED))
    return story.record(add(1), applied(4))


def copy_finished_after_its_deletion_started(story: Story) -> Record:
    story.record(add(1))
    story.record(move(1, DELETE_STARTED, broker_id=OTHER_BROKER))
    return story.record(move(1, FINISHED), applied(3))


def leased_copy_given_up_by_another_broker(story: Story) -> Record:
    story.record(replace(add(1), is_leased=True))
    return story.record(move(1, DELETE_STARTED, broker_id=OTHER_BROKER), applied(2))


def deletion_taken_back_after_it_started(story: Story) -> Record:
    story.record(add(1))
    story.record(delete(MARKED))
    story.record(delete(PARTITION_STARTED))
    return story.record(Undelete(), applied(4))


def mark_taken_back_and_still_enforced(story: Story) -> Record:
    story.record(add(1))
    story.record(delete(MARKED))
    story.record(Undelete())
    return story.record(add(2), refused(InvalidStateTransitionError))


def reset_leader_epoch_that_still_fences(story: Story) -> Record:
    story.record(add(1, broker_leader_epoch=5))
    story.record(ResetLeaderEpoch(2))
    return story.record(add(2, broker_leader_epoch=3), refused(FencedLeaderEpochError))


VIOLATIONS: tuple[Violation, ...] = (
    lost_update,
    stale_read,
    read_of_an_uncommitted_change,
    read_of_a_change_that_nobody_has_asked_for_yet,
    revision_used_twice,
    gap_between_revisions,
    revision_goes_backwards_between_two_reads,
    order_against_the_clock_across_clients,
    read_of_another_client_older_than_what_was_acknowledged,
    applied_twice_under_one_request_id,
    repeat_answered_with_another_revision,
    repeat_under_its_request_id_that_says_not_applied,
    lost_change_that_its_repeat_makes_again,
    request_id_taken_with_another_body,
    refusal_that_no_state_justifies,
    refusal_justified_only_before_it_was_asked,
    refusal_justified_only_after_it_was_answered,
    look_up_that_finds_a_segment_whose_deletion_started,
    list_without_an_acknowledged_segment,
    highest_offset_that_falls,
    fence_ignored_by_add,
    fence_ignored_by_deletion,
    two_winners_of_one_move,
    no_winner_of_a_move,
    add_after_the_mark_of_deletion,
    deleted_partition_that_can_be_read,
    deletion_of_a_partition_that_is_not_marked,
    deletion_that_finishes_while_segments_remain,
    read_your_writes_broken,
    lost_change_that_happened_and_then_did_not,
    lost_change_that_happened_before_it_was_asked,
    lost_change_that_happened_twice,
    two_lost_changes_seen_in_both_orders,
    expected_revision_ignored,
    half_a_batch_seen,
    batch_in_another_order_than_asked,
    batch_whose_refused_item_took_a_revision,
    size_of_finished_segments_only,
    update_that_erases_custom_metadata,
    displaced_segment_found_before_the_one_that_displaced_it,
    transaction_index_passed_over,
    log_start_that_falls,
    not_modified_since_a_revision_that_is_not_the_present_one,
    tombstone_that_comes_back,
    copy_finished_after_its_deletion_started,
    leased_copy_given_up_by_another_broker,
    deletion_taken_back_after_it_started,
    mark_taken_back_and_still_enforced,
    reset_leader_epoch_that_still_fences,
)
