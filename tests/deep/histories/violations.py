"""Violations: each function writes a history and returns the one record that no order explains.

Without that record the history is legal, so the checker refuses it for nothing else. They are about
time, losses, repeats and revisions; mutants of the model break RLMM's rules.
"""

from collections.abc import Callable

from services.api.calls import AtRevision
from services.api.errors import InvalidStateTransitionError, RemoteResourceNotFoundError
from tests.contract.rlmm.segments import DELETE_STARTED, FINISHED, MARKED
from tests.deep.histories.history import Record
from tests.deep.histories.operations import (
    ListSegments,
    LookUp,
    Move,
    MoveBatch,
    PutDeletion,
    RaiseLogStart,
)
from tests.deep.histories.stories import (
    LOST,
    Story,
    add,
    announce,
    applied,
    listed,
    once,
    repeated,
    segment,
)

Violation = Callable[[Story], Record]
VIOLATIONS: list[Violation] = []
FIRST = segment(1)


def violation(writes: Violation) -> Violation:
    VIOLATIONS.append(writes)
    return writes


def copied(story: Story, *numbers: int) -> None:
    """Segments of ten offsets each, one after another, finished."""
    for number in numbers:
        story.record(add(number, 10 * number, 10 * number + 9))
        story.record(Move(0, number, FINISHED))


@violation
def lost_update(story: Story) -> Record:
    story.record(add(1))
    story.record(Move(0, 1, FINISHED))
    story.record(add(2))
    return story.record(ListSegments(0), listed(3, FIRST, segment(2)))


@violation
def stale_read(story: Story) -> Record:
    story.record(add(1))
    story.record(Move(0, 1, FINISHED))
    return story.record(LookUp(0, 0, 5), AtRevision(None, 1))


@violation
def read_of_an_uncommitted_change(story: Story) -> Record:
    story.record(add(1))
    story.record(add(2, why=once("late", expected_revision=0)))
    return story.record(ListSegments(0), listed(2, FIRST, segment(2)))


@violation
def read_of_a_change_that_nobody_has_sent_yet(story: Story) -> Record:
    story.record(add(1), at=(10, 20))
    return story.record(ListSegments(0), at=(1, 5), client="b")


@violation
def revision_used_twice(story: Story) -> Record:
    first = story.record(add(1), at=(1, 10))
    story.record(add(2), applied(1), at=(1, 10), client="b")
    return first


@violation
def gap_between_revisions(story: Story) -> Record:
    story.record(add(1))
    return story.record(add(2), applied(3))


@violation
def revision_goes_backwards_between_two_reads(story: Story) -> Record:
    story.record(add(1))
    story.record(add(2), at=(10, 100))
    story.record(ListSegments(0), at=(20, 30), client="b")
    return story.record(ListSegments(0), listed(1, FIRST), at=(40, 50), client="b")


@violation
def order_against_the_clock_across_clients(story: Story) -> Record:
    story.record(add(1))
    story.record(add(4), LOST)
    early = story.record(add(2), applied(3), at=(10, 12), client="b")
    story.record(add(3), applied(2), at=(20, 30), client="c")
    return early


@violation
def read_of_another_client_older_than_what_was_acknowledged(story: Story) -> Record:
    story.record(add(1), client="a")
    return story.record(ListSegments(0), RemoteResourceNotFoundError, client="b")


@violation
def applied_twice_under_one_request_id(story: Story) -> Record:
    why = once("once")
    story.record(RaiseLogStart(0, 0, why=why), RemoteResourceNotFoundError)
    copied(story, 0)
    story.record(RaiseLogStart(0, 5, why=why))
    return story.record(RaiseLogStart(0, 5, why=why), applied(4))


@violation
def repeat_answered_with_another_revision(story: Story) -> Record:
    why = once("once")
    story.record(add(1, why=why))
    story.record(add(2))
    return story.record(add(1, why=why), applied(2))


@violation
def repeat_under_its_request_id_that_says_not_applied(story: Story) -> Record:
    why = once("once")
    story.record(add(1, why=why), LOST)
    story.record(ListSegments(0))
    return story.record(add(1, why=why), repeated(1))


@violation
def lost_change_that_its_repeat_makes_again(story: Story) -> Record:
    why = once("once")
    story.record(add(1, why=why), LOST)
    story.record(ListSegments(0))
    return story.record(add(1, why=why), applied(2))


@violation
def refusal_that_no_state_justifies(story: Story) -> Record:
    story.record(add(1))
    return story.record(Move(0, 1, FINISHED), InvalidStateTransitionError, happens=False)


@violation
def refusal_justified_only_before_it_was_sent(story: Story) -> Record:
    story.record(announce(0))
    story.record(add(1))
    return story.record(Move(0, 1, FINISHED), RemoteResourceNotFoundError, happens=False)


@violation
def refusal_justified_only_after_it_was_answered(story: Story) -> Record:
    story.record(announce(0))
    story.record(PutDeletion(0, MARKED), at=(20, 30))
    return story.record(add(1), at=(10, 15), client="b")


@violation
def two_winners_of_one_move(story: Story) -> Record:
    story.record(add(1))
    story.record(Move(0, 1, FINISHED), at=(10, 20))
    return story.record(Move(0, 1, FINISHED), applied(3), at=(10, 20), client="b")


@violation
def no_winner_of_a_move(story: Story) -> Record:
    story.record(add(1))
    why = once("once")  # without a request id its own first attempt may have been lost
    return story.record(Move(0, 1, FINISHED, why=why), repeated(2), happens=False)


@violation
def lost_change_that_happened_and_then_did_not(story: Story) -> Record:
    story.record(announce(0))
    story.record(add(1), LOST)
    story.record(ListSegments(0), client="b")
    return story.record(ListSegments(0), listed(1), client="c")


@violation
def lost_change_that_happened_before_it_was_sent(story: Story) -> Record:
    story.record(announce(0))
    story.record(add(1), LOST, at=(20, 30))
    return story.record(ListSegments(0), at=(10, 15), client="b")


@violation
def lost_change_that_happened_twice(story: Story) -> Record:
    story.record(announce(0))
    story.record(add(1), LOST)
    return story.record(ListSegments(0), listed(3, FIRST))


@violation
def two_lost_changes_seen_in_both_orders(story: Story) -> Record:
    story.record(announce(0))
    story.record(add(1), LOST, at=(10, 11))
    story.record(add(2), LOST, at=(10, 11))
    one = story.record(ListSegments(0), listed(2, FIRST), at=(10, 40), client="b")
    story.record(ListSegments(0), listed(2, segment(2)), at=(10, 40), client="c")
    return one


@violation
def half_a_batch_seen(story: Story) -> Record:
    copied(story, 0, 1)
    batch = MoveBatch((Move(0, 0, DELETE_STARTED), Move(0, 1, DELETE_STARTED)))
    half = Story()
    copied(half, 0, 1)
    half.record(Move(0, 0, DELETE_STARTED))
    story.record(batch, at=(10, 50))
    page = half.record(ListSegments(0)).reply
    return story.record(ListSegments(0), page, at=(20, 30), client="b")


@violation
def batch_in_another_order_than_sent(story: Story) -> Record:
    story.record(add(1))
    story.record(add(2))
    batch = MoveBatch((Move(0, 1, FINISHED), Move(0, 2, FINISHED)))
    return story.record(batch, (applied(4), applied(3)), happens=False)


@violation
def batch_whose_refused_item_took_a_revision(story: Story) -> Record:
    story.record(add(1))
    batch = MoveBatch((Move(0, 2, FINISHED), Move(0, 1, FINISHED)))
    return story.record(batch, (RemoteResourceNotFoundError, applied(3)), happens=False)
