"""Legal histories that look like violations: for most violations, the similar one with an order."""

from collections.abc import Callable

from services.api.errors import (
    InvalidStateTransitionError,
)
from tests.contract.rlmm.segments import DELETE_STARTED, FINISHED, MARKED
from tests.deep.histories.operations import (
    ListSegments,
    LookUp,
    Move,
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

Legal = Callable[[Story], None]
LEGAL: list[Legal] = []
FIRST, SECOND = segment(1), segment(2)


def legal(writes: Legal) -> Legal:
    LEGAL.append(writes)
    return writes


@legal
def reads_beside_a_change_see_it_or_do_not(story: Story) -> None:
    story.record(add(1))
    story.record(add(2), at=(10, 100))
    story.record(ListSegments(0), listed(1, FIRST), at=(20, 30), client="b")
    story.record(ListSegments(0), listed(2, FIRST, SECOND), at=(40, 50), client="b")
    story.record(ListSegments(0), listed(1, FIRST), at=(20, 50), client="c")


@legal
def order_against_the_order_of_sending(story: Story) -> None:
    story.record(add(2), at=(20, 40), client="b")
    story.record(add(1), at=(10, 30))


@legal
def lost_change_that_happens_long_after(story: Story) -> None:
    story.record(announce(0))
    story.record(add(1), LOST, happens=False)
    story.record(ListSegments(0), client="b")
    story.record(add(2), client="b")
    story.record(ListSegments(0), listed(3, FIRST, SECOND), client="c")


@legal
def lost_change_that_never_happens(story: Story) -> None:
    story.record(announce(0))
    story.record(add(1), LOST, happens=False)
    story.record(add(2), client="b")
    story.record(ListSegments(0), client="b")


@legal
def lost_change_whose_repeat_tells_its_revision(story: Story) -> None:
    why = once("once")
    story.record(add(1, why=why), LOST)
    story.record(add(2), client="b")
    story.record(add(1, why=why), applied(1))


@legal
def lost_change_whose_repeat_makes_it(story: Story) -> None:
    why = once("once")
    story.record(add(1, why=why), LOST, happens=False)
    story.record(add(2), client="b")
    story.record(add(1, why=why), applied(2))
    story.record(add(1, why=why), applied(2))


@legal
def lost_change_without_a_request_id_found_by_its_repeat(story: Story) -> None:
    story.record(add(1), LOST)
    story.record(add(2), client="b")
    story.record(add(1), repeated(1))


@legal
def change_that_its_own_client_repeats(story: Story) -> None:
    """The answer to the first attempt was lost on its way, and the client retried."""
    story.record(add(1), repeated(1), at=(10, 40))
    story.record(ListSegments(0), listed(1, FIRST), at=(20, 30), client="b")
    story.record(Move(0, 1, FINISHED), repeated(2))


@legal
def log_start_that_its_own_client_repeats(story: Story) -> None:
    story.record(add(1))
    story.record(Move(0, 1, FINISHED))
    story.record(RaiseLogStart(0, 5), repeated(4), at=(10, 40))
    story.record(add(2), applied(4), at=(20, 30), client="b")


@legal
def lost_changes_of_which_one_order_alone_explains_a_look_up(story: Story) -> None:
    """Of two copies of the same offsets the one that finished later is found."""
    story.record(add(1))
    story.record(add(2))
    story.record(Move(0, 2, FINISHED), LOST, at=(10, 11), client="b")
    story.record(Move(0, 1, FINISHED), LOST, at=(10, 11))
    story.record(LookUp(0, 0, 5), client="c")


@legal
def lost_announcement_that_explains_a_gap(story: Story) -> None:
    story.record(add(1))
    story.record(announce(5), LOST)
    story.record(add(2), applied(3))


@legal
def one_winner_and_one_repeat(story: Story) -> None:
    story.record(add(1))
    story.record(Move(0, 1, FINISHED), at=(10, 30))
    story.record(Move(0, 1, FINISHED), repeated(2), at=(10, 20), client="b")


@legal
def refusal_by_a_mark_that_comes_at_the_same_time(story: Story) -> None:
    story.record(announce(0))
    story.record(PutDeletion(0, MARKED), at=(10, 30))
    refusal = InvalidStateTransitionError
    story.record(add(1), refusal, at=(15, 20), client="b")


@legal
def add_before_a_mark_that_comes_at_the_same_time(story: Story) -> None:
    story.record(announce(0))
    story.record(add(1), at=(15, 20), client="b")
    story.record(PutDeletion(0, MARKED), at=(10, 30))


@legal
def refusal_by_what_a_lost_call_did(story: Story) -> None:
    story.record(add(1))
    story.record(Move(0, 1, DELETE_STARTED), LOST, client="b")
    story.record(Move(0, 1, FINISHED), InvalidStateTransitionError)
