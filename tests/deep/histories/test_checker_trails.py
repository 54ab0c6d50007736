"""The audit trail must agree with the replies: every change, once, in their order."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.contract.rlmm.segments import DELETE_STARTED, FINISHED, MARKED, OTHER_BROKER
from tests.deep.histories.checker import check
from tests.deep.histories.history import History, TrailEntry
from tests.deep.histories.operations import ListSegments, LookUp, Move, PutDeletion
from tests.deep.histories.search import NotLinearizableError
from tests.deep.histories.stories import LOST, Story, add, announce, applied, once, segment

Trail = list[TrailEntry]


def changed(story: Story, change: Callable[[Trail], Sequence[TrailEntry]]) -> History:
    """The story with another audit trail than it has."""
    history = story.history_with_trail()
    return replace(history, trails={0: change(list(history.trails[0]))})


def with_event(trail: Trail, revision: int, **fields: object) -> Trail:
    """The trail with another event at `revision`."""
    entry = trail[revision - 1]
    event = replace(entry.event, **fields)  # type: ignore[arg-type]
    return [*trail[: revision - 1], replace(entry, event=event), *trail[revision:]]


@pytest.fixture
def story() -> Story:
    """Six changes, a lost one of them and a refused one beside them."""
    written = Story()
    written.record(announce(1))
    written.record(add(1, why=once("one")), LOST)
    written.record(add(1, why=once("one")), applied(2))
    written.record(Move(0, 2, FINISHED))
    written.record(add(2), at=(50, 70))
    written.record(Move(0, 1, FINISHED), at=(50, 70), client="b")
    written.record(Move(0, 2, DELETE_STARTED), LOST)
    written.record(PutDeletion(0, MARKED))
    return written


def test_true_audit_trail_is_accepted(story: Story) -> None:
    (order,) = check(story.history_with_trail()).values()
    assert [record.number for record in order.changes[2:]] == [5, 6, 7, 8]
    assert order.final == story.truth


WRONG_TRAILS: dict[str, Callable[[Trail], Sequence[TrailEntry]]] = {
    "a gap": lambda trail: [*trail[:2], *trail[3:]],
    "a revision twice": lambda trail: [*trail[:3], *trail[2:]],
    "an acknowledged change missing at the end": lambda trail: trail[:-1],
    "nothing at all": lambda trail: [],
    "an event without a call": lambda trail: [
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


@pytest.mark.parametrize("name", WRONG_TRAILS)
def test_a_wrong_trail_is_refused(story: Story, name: str) -> None:
    with pytest.raises(NotLinearizableError):
        check(changed(story, WRONG_TRAILS[name]))


def test_a_repeat_that_was_answered_counts(story: Story) -> None:
    story.record(add(1, why=once("one")), applied(2))
    with pytest.raises(NotLinearizableError, match="revision 2 was repeated 1 times"):
        check(story.history_with_trail())
    check(story.history_with_trail({2: 1}))


def test_more_repeats_than_were_asked_for_are_refused(story: Story) -> None:
    with pytest.raises(NotLinearizableError, match="the audit trail counts 9"):
        check(story.history_with_trail({1: 9}))


def test_replies_in_another_order_than_the_trail_are_named() -> None:
    """Of two lost finishes the look-up found the later one; the trail has them the other way."""
    written = Story()
    written.record(add(1))
    written.record(add(2))
    written.record(Move(0, 2, FINISHED), LOST, at=(10, 11))
    written.record(Move(0, 1, FINISHED), LOST, at=(10, 11))
    look_up = written.record(LookUp(0, 0, 5))
    written.record(ListSegments(0))
    check(written.history_with_trail())

    def swapped(trail: Trail) -> Trail:
        third, fourth = trail[2].event, trail[3].event
        return [
            *trail[:2],
            replace(trail[2], event=replace(fourth, revision=3)),
            replace(trail[3], event=replace(third, revision=4)),
        ]

    with pytest.raises(NotLinearizableError, match="none that the audit trail tells") as caught:
        check(changed(written, swapped))
    assert look_up in caught.value.unexplained
