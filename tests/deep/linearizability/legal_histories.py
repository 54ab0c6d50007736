"""Legal histories that look like violations: for most violations, the similar one with an order."""

from collections.abc import Callable
from dataclasses import replace

from services.api.errors import (
    DeletionRefusedError,
    InvalidRequestError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
)
from tests.deep.linearizability.operations import (
    Answered,
    HighestOffset,
    ListSegments,
    LookUp,
    RaiseLogStart,
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

Legal = Callable[[Story], None]
FIRST, SECOND = segment(1), segment(2)


def reads_beside_a_change_see_it_or_do_not(story: Story) -> None:
    story.record(add(1))
    story.record(add(2), at=(10, 100))
    story.record(ListSegments(), listed(1, FIRST), at=(20, 30), client="b")
    story.record(ListSegments(), listed(2, FIRST, SECOND), at=(40, 50), client="b")
    story.record(ListSegments(), listed(1, FIRST), at=(20, 50), client="c")


def order_against_the_order_of_asking(story: Story) -> None:
    story.record(add(2), at=(20, 40), client="b")
    story.record(add(1), at=(10, 30))


def lost_change_that_happens_long_after(story: Story) -> None:
    story.record(announce(0))
    story.record(add(1), LOST, happens=False)
    story.record(ListSegments(), client="b")
    story.record(add(2), client="b")
    story.record(ListSegments(), listed(3, FIRST, SECOND), client="c")


def lost_change_that_never_happens(story: Story) -> None:
    story.record(announce(0))
    story.record(add(1), LOST, happens=False)
    story.record(add(2), client="b")
    story.record(ListSegments(), client="b")


def lost_change_whose_repeat_tells_its_revision(story: Story) -> None:
    why = asked_as("once")
    story.record(add(1, why=why), LOST)
    story.record(add(2), client="b")
    story.record(add(1, why=why), applied(1))


def lost_change_whose_repeat_makes_it(story: Story) -> None:
    why = asked_as("once")
    story.record(add(1, why=why), LOST, happens=False)
    story.record(add(2), client="b")
    story.record(add(1, why=why), applied(2))
    story.record(add(1, why=why), applied(2))


def lost_change_without_a_request_id_found_by_its_repeat(story: Story) -> None:
    story.record(add(1), LOST)
    story.record(add(2), client="b")
    story.record(add(1), repeated(1))


def change_that_its_own_client_repeats(story: Story) -> None:
    """The answer to the first attempt was lost on its way, and the client asked again."""
    story.record(add(1), repeated(1), at=(10, 40))
    story.record(ListSegments(), listed(1, FIRST), at=(20, 30), client="b")
    story.record(move(1, FINISHED), repeated(2))


def log_start_that_its_own_client_repeats(story: Story) -> None:
    story.record(add(1))
    story.record(move(1, FINISHED))
    story.record(RaiseLogStart(5), repeated(4), at=(10, 40))
    story.record(add(2), applied(4), at=(20, 30), client="b")


def lost_changes_of_which_one_order_alone_explains_a_look_up(story: Story) -> None:
    """Of two copies of the same offsets the one that finished later is found."""
    story.record(add(1))
    story.record(add(2))
    story.record(move(2, FINISHED), LOST, at=(10, 11), client="b")
    story.record(move(1, FINISHED), LOST, at=(10, 11))
    story.record(LookUp(0, 5), client="c")


def lost_announcement_that_explains_a_gap(story: Story) -> None:
    story.record(add(1))
    story.record(announce(5), LOST)
    story.record(add(2), applied(3))


def announcement_between_two_revisions(story: Story) -> None:
    story.record(add(1))
    story.record(announce(5))
    story.record(announce(4))
    story.record(add(2), applied(3))


def one_winner_and_one_repeat(story: Story) -> None:
    story.record(add(1))
    story.record(move(1, FINISHED), at=(10, 30))
    story.record(move(1, FINISHED), repeated(2), at=(10, 20), client="b")


def refusal_by_a_mark_that_comes_at_the_same_time(story: Story) -> None:
    story.record(announce(0))
    story.record(delete(MARKED), at=(10, 30))
    refusal = refused(InvalidStateTransitionError)
    story.record(add(1), refusal, at=(15, 20), client="b")


def add_before_a_mark_that_comes_at_the_same_time(story: Story) -> None:
    story.record(announce(0))
    story.record(add(1), at=(15, 20), client="b")
    story.record(delete(MARKED), at=(10, 30))


def refusal_by_what_a_lost_call_did(story: Story) -> None:
    story.record(add(1))
    story.record(move(1, DELETE_STARTED), LOST, client="b")
    story.record(move(1, FINISHED), refused(InvalidStateTransitionError))


def refused_request_id_is_free_again(story: Story) -> None:
    why = asked_as("again")
    story.record(add(1))
    story.record(move(2, FINISHED, why=why), refused(RemoteResourceNotFoundError))
    story.record(move(1, FINISHED, why=why), applied(2))
    story.record(move(2, FINISHED, why=why), refused(InvalidRequestError))


def repeat_with_another_expected_revision(story: Story) -> None:
    story.record(add(1, why=asked_as("once", expected_revision=0)))
    story.record(add(2))
    story.record(add(1, why=asked_as("once", expected_revision=2)), applied(1))


def highest_offset_outlives_its_segment(story: Story) -> None:
    story.record(add(1))
    for state in (FINISHED, DELETE_STARTED, DELETE_FINISHED):
        story.record(move(1, state))
    story.record(HighestOffset(0), Answered(9, 4))


def older_leader_finishes_its_copy_and_cleans_up_another(story: Story) -> None:
    why = asked_as("finish", broker_leader_epoch=1)
    clean_up = asked_as("clean up", broker_leader_epoch=1)
    story.record(add(1))
    story.record(add(2))
    story.record(announce(5))
    story.record(move(1, FINISHED, why=why, broker_id=OTHER_BROKER), applied(4))
    story.record(move(2, DELETE_STARTED, why=clean_up), applied(5))


def second_deleter_finds_the_deletion_over(story: Story) -> None:
    story.record(add(1))
    story.record(move(1, DELETE_STARTED))
    story.record(move(1, DELETE_FINISHED))
    story.record(move(1, DELETE_STARTED), repeated(3))


def mark_of_a_deleted_partition_is_a_repeat(story: Story) -> None:
    for state in (MARKED, PARTITION_STARTED, PARTITION_FINISHED):
        story.record(delete(state))
    story.record(announce(9))
    story.record(delete(MARKED), repeated(1))
    story.record(ListSegments(), refused(RemoteResourceNotFoundError))


def batch_with_a_refused_item_takes_no_revision_for_it(story: Story) -> None:
    story.record(add(1))
    story.record(add(2))
    story.record(UpdateBatch((item(1, FINISHED), item(3, FINISHED), item(2, FINISHED))))
    story.record(ListSegments())


def log_start_that_is_high_enough_names_the_present_revision(story: Story) -> None:
    story.record(add(1))
    story.record(move(1, FINISHED))
    story.record(RaiseLogStart(5))
    story.record(add(2))
    story.record(RaiseLogStart(4), repeated(4))


def mark_taken_back_lets_copies_begin_again(story: Story) -> None:
    story.record(add(1))
    story.record(delete(MARKED))
    story.record(add(2), refused(InvalidStateTransitionError))
    story.record(Undelete())
    story.record(add(2), applied(4))
    story.record(Undelete(), repeated(4))


def leased_copy_ends_by_its_own_broker(story: Story) -> None:
    story.record(replace(add(1), is_leased=True))
    story.record(move(1, DELETE_STARTED, broker_id=OTHER_BROKER), refused(DeletionRefusedError))
    story.record(move(1, DELETE_STARTED))
    story.record(ListSegments())


LEGAL: tuple[Legal, ...] = (
    reads_beside_a_change_see_it_or_do_not,
    order_against_the_order_of_asking,
    lost_change_that_happens_long_after,
    lost_change_that_never_happens,
    lost_change_whose_repeat_tells_its_revision,
    lost_change_whose_repeat_makes_it,
    lost_change_without_a_request_id_found_by_its_repeat,
    change_that_its_own_client_repeats,
    log_start_that_its_own_client_repeats,
    lost_changes_of_which_one_order_alone_explains_a_look_up,
    lost_announcement_that_explains_a_gap,
    announcement_between_two_revisions,
    one_winner_and_one_repeat,
    refusal_by_a_mark_that_comes_at_the_same_time,
    add_before_a_mark_that_comes_at_the_same_time,
    refusal_by_what_a_lost_call_did,
    refused_request_id_is_free_again,
    repeat_with_another_expected_revision,
    highest_offset_outlives_its_segment,
    older_leader_finishes_its_copy_and_cleans_up_another,
    second_deleter_finds_the_deletion_over,
    mark_of_a_deleted_partition_is_a_repeat,
    batch_with_a_refused_item_takes_no_revision_for_it,
    log_start_that_is_high_enough_names_the_present_revision,
    mark_taken_back_lets_copies_begin_again,
    leased_copy_ends_by_its_own_broker,
)
