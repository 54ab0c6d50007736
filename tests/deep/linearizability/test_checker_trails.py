"""The audit trail must tell the same story as the replies: every change, once, in their order."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.deep.linearizability.checker import check
from tests.deep.linearizability.history import History, TrailEntry
from tests.deep.linearizability.operations import ListSegments, LookUp
from tests.deep.linearizability.search import NotLinearizableError
from tests.deep.linearizability.stories import (
    LOST,
    OTHER_BROKER,
    TP,
    Story,
    add,
    announce,
    applied,
    asked_as,
    delete,
    move,
    segment,
)
from tests.deep.model.kafka_cache import DELETE_STARTED, FINISHED
from tests.deep.model.partition import MARKED

Trail = list[TrailEntry]


def changed(story: Story, change: Callable[[Trail], Sequence[TrailEntry]]) -> History:
    """The story with another audit trail than it has."""
    history = story.history_with_trail()
    return History(history.records, {str(TP): change(list(history.trails[str(TP)]))})


def with_event(trail: Trail, revision: int, **fields: object) -> Trail:
    """The trail with another event at `revision`."""
    entry = trail[revision - 1]
    event = replace(entry.event, **fields)  # type: ignore[arg-type]
    return [*trail[: revision - 1], replace(entry, event=event), *trail[revision:]]


@pytest.fixture
def story() -> Story:
    """Six changes, a lost one of them and a refused one beside them."""
    told = Story()
    told.tell(announce(1))
    told.tell(add(1, why=asked_as("one")), LOST)
    told.tell(add(1, why=asked_as("one")), applied(2))
    told.tell(move(2, FINISHED))
    told.tell(add(2), at=(50, 70))
    told.tell(move(1, FINISHED), at=(50, 70), client="b")
    told.tell(move(2, DELETE_STARTED), LOST)
    told.tell(delete(MARKED))
    return told


def test_the_trail_of_what_happened_is_accepted(story: Story) -> None:
    (order,) = check(story.history_with_trail()).values()
    assert [record.number for record in order.changes[2:]] == [5, 6, 7, 8]
    assert order.final == story.truth


TALES: dict[str, Callable[[Trail], Sequence[TrailEntry]]] = {
    "a gap": lambda trail: [*trail[:2], *trail[3:]],
    "a revision twice": lambda trail: [*trail[:3], *trail[2:]],
    "an acknowledged change missing at the end": lambda trail: trail[:-1],
    "nothing at all": lambda trail: [],
    "an event that nobody asked for": lambda trail: [
        *trail,
        replace(trail[0], event=replace(trail[0].event, revision=7, broker_leader_epoch=9)),
    ],
    "a request id applied twice": lambda trail: [
        *trail,
        replace(trail[1], event=replace(trail[1].event, revision=7)),
    ],
    "two changes in the other order": lambda trail: [
        *trail[:2],
        replace(trail[3], event=replace(trail[3].event, revision=3)),
        replace(trail[2], event=replace(trail[2].event, revision=4)),
        *trail[4:],
    ],
    "another segment": lambda trail: with_event(
        trail, 3, segment_id=segment(3).remote_log_segment_id.id
    ),
    "another state before": lambda trail: with_event(trail, 5, from_state=FINISHED.value),
    "another state after": lambda trail: with_event(trail, 4, to_state=DELETE_STARTED.value),
    "another broker": lambda trail: with_event(trail, 4, broker_id=OTHER_BROKER),
    "another leader epoch": lambda trail: with_event(trail, 1, broker_leader_epoch=2),
    "another request id": lambda trail: with_event(trail, 2, request_id="two"),
    "another reason": lambda trail: with_event(trail, 6, reason="because"),
}


@pytest.mark.parametrize("tale", TALES)
def test_a_trail_that_tells_another_story_is_refused(story: Story, tale: str) -> None:
    with pytest.raises(NotLinearizableError):
        check(changed(story, TALES[tale]))


def test_a_repeat_that_was_answered_counts(story: Story) -> None:
    story.tell(add(1, why=asked_as("one")), applied(2))
    with pytest.raises(NotLinearizableError, match="revision 2 was repeated 1 times"):
        check(story.history_with_trail())
    check(story.history_with_trail({2: 1}))


def test_more_repeats_than_were_asked_for_are_refused(story: Story) -> None:
    with pytest.raises(NotLinearizableError, match="the audit trail counts 9"):
        check(story.history_with_trail({1: 9}))


def test_replies_that_have_an_order_which_the_trail_does_not_tell_are_named_so() -> None:
    """Of two lost finishes the look-up found the later one; the trail has them the other way."""
    told = Story()
    told.tell(add(1))
    told.tell(add(2))
    told.tell(move(2, FINISHED), LOST, at=(10, 11))
    told.tell(move(1, FINISHED), LOST, at=(10, 11))
    look_up = told.tell(LookUp(0, 5))
    told.tell(ListSegments())
    check(told.history_with_trail())

    def swapped(trail: Trail) -> Trail:
        third, fourth = trail[2].event, trail[3].event
        return [
            *trail[:2],
            replace(trail[2], event=replace(fourth, revision=3)),
            replace(trail[3], event=replace(third, revision=4)),
        ]

    with pytest.raises(NotLinearizableError, match="none that the audit trail tells") as caught:
        check(changed(told, swapped))
    assert look_up in caught.value.unexplained
