"""A long sequence becomes a short one that shows the same."""

from collections.abc import Sequence
from dataclasses import replace

from services.api.calls import MutationContext
from services.api.topic_config import RetentionOwner
from tests.contract.rlmm.segments import FINISHED
from tests.deep.histories import operations as names
from tests.deep.histories.operations import (
    Add,
    Import,
    Lead,
    Move,
    MoveBatch,
    Operation,
    Stop,
    script,
)
from tests.deep.model.comparison import MismatchError
from tests.deep.model.shrinking import shrunk

FIRST, SECOND = Stop(7), Stop(8)


def first_then_second(operations: Sequence[Operation]) -> MismatchError | None:
    """Return a mismatch if SECOND comes after FIRST."""
    for place, operation in enumerate(operations):
        if operation == SECOND and FIRST in operations[:place]:
            return MismatchError(tuple(operations[: place + 1]), "Stop", 1, 2)
    return None


def mismatch_of(*operations: Operation) -> MismatchError:
    return MismatchError(operations, "Stop", 1, 2)


def test_all_that_does_not_matter_is_dropped() -> None:
    others = [Stop(number % 5) for number in range(50)]
    long = mismatch_of(*others, FIRST, *others, FIRST, *others, SECOND)
    assert shrunk(long, first_then_second).operations == (FIRST, SECOND)


def test_shortest_sequence_stays() -> None:
    assert shrunk(mismatch_of(FIRST, SECOND), first_then_second).operations == (FIRST, SECOND)


def test_another_mismatch_does_not_take_the_place_of_the_one_that_was_found() -> None:
    def replay(operations: Sequence[Operation]) -> MismatchError | None:
        found = first_then_second(operations)
        return found or MismatchError(tuple(operations), "another", 1, 2)

    long = mismatch_of(Stop(1), FIRST, Stop(2), SECOND)
    assert shrunk(long, replay).operations == (FIRST, SECOND)


def test_expected_revisions_follow_the_dropped_operations() -> None:
    def replay(operations: Sequence[Operation]) -> MismatchError | None:
        last = operations[-1] if operations else None
        shows = isinstance(last, Move) and last.why.expected_revision == len(operations) - 1
        return MismatchError(tuple(operations), "Stop", 1, 2) if shows else None

    last = Move(0, 1, FINISHED, why=MutationContext(expected_revision=4))
    long = mismatch_of(Stop(0), Stop(1), Stop(2), Stop(3), last)
    assert len(shrunk(long, replay).operations) == 1


def test_parts_of_an_operation_that_do_not_matter_are_dropped() -> None:
    needed, added = Move(0, 7, FINISHED), Add(0, 7, 0, 9, ((0, 0),))

    def replay(operations: Sequence[Operation]) -> MismatchError | None:
        moves = [move for each in operations if isinstance(each, MoveBatch) for move in each.moves]
        adds = [
            add
            for each in operations
            if isinstance(each, Import)
            for message in each.messages
            for add in message
        ]
        shows = needed in moves and added in adds
        return MismatchError(tuple(operations), "Stop", 1, 2) if shows else None

    other_moves = [Move(0, number, FINISHED) for number in range(3)]
    other_adds = [replace(added, id=number) for number in range(3)]
    long = mismatch_of(
        Import(0, (tuple(other_adds), (*other_adds, added))),
        MoveBatch((*other_moves, needed, *other_moves)),
    )
    shortest = (Import(0, ((added,),)), MoveBatch((needed,)))
    assert shrunk(long, replay).operations == shortest


def test_it_ends_when_its_replays_are_used_up() -> None:
    replays = 0

    def replay(operations: Sequence[Operation]) -> MismatchError | None:
        nonlocal replays
        replays += 1
        return first_then_second(operations)

    long = mismatch_of(*[Stop(number % 5) for number in range(90)], FIRST, SECOND)
    found = shrunk(long, replay, max_replays=5)
    assert replays == 5
    assert 2 < len(found.operations) < len(long.operations)


def test_a_script_is_python_that_makes_the_operations_again() -> None:
    operations: list[Operation] = [
        Lead(((0, None), (1, 7)), ((2, 3),)),
        Add(0, 1, 5, 9, ((0, 5),), custom_metadata=b"\x00'", why=MutationContext("q")),
        MoveBatch((Move(0, 1, FINISHED, why=MutationContext(retention_owner=RetentionOwner.RLM)),)),
    ]
    known = {
        **vars(names),
        "FINISHED": FINISHED,
        "RetentionOwner": RetentionOwner,
    }
    assert eval(script(operations).strip(), known) == operations
