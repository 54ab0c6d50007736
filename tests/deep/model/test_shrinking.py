"""A long sequence becomes a short one that shows the same."""

from collections.abc import Sequence

from services.api.calls import MutationContext
from services.api.topic_config import RetentionOwner
from tests.contract.rlmm.segments import FINISHED
from tests.deep.model import operations as names
from tests.deep.model.comparison import Mismatch
from tests.deep.model.operations import Add, Lead, Move, MoveBatch, Operation, Stop, script
from tests.deep.model.shrinking import shrunk

FIRST, SECOND = Stop(7), Stop(8)


def first_then_second(operations: Sequence[Operation]) -> Mismatch | None:
    """A mismatch where SECOND comes after FIRST."""
    for place, operation in enumerate(operations):
        if operation == SECOND and FIRST in operations[:place]:
            return Mismatch(tuple(operations[: place + 1]), "Stop", 1, 2)
    return None


def mismatch_of(*operations: Operation) -> Mismatch:
    return Mismatch(operations, "Stop", 1, 2)


def test_all_that_does_not_matter_is_dropped() -> None:
    others = [Stop(number % 5) for number in range(50)]
    long = mismatch_of(*others, FIRST, *others, FIRST, *others, SECOND)
    assert shrunk(long, first_then_second).operations == (FIRST, SECOND)


def test_shortest_sequence_stays() -> None:
    assert shrunk(mismatch_of(FIRST, SECOND), first_then_second).operations == (FIRST, SECOND)


def test_another_mismatch_does_not_take_the_place_of_the_one_that_was_found() -> None:
    def replay(operations: Sequence[Operation]) -> Mismatch | None:
        found = first_then_second(operations)
        return found or Mismatch(tuple(operations), "another", 1, 2)

    long = mismatch_of(Stop(1), FIRST, Stop(2), SECOND)
    assert shrunk(long, replay).operations == (FIRST, SECOND)


def test_needless_parts_of_an_operation_are_left_out() -> None:
    def replay(operations: Sequence[Operation]) -> Mismatch | None:
        shows = any(
            isinstance(each, MoveBatch) and any(move.why.request_id == "q" for move in each.moves)
            for each in operations
        )
        return Mismatch(tuple(operations), "Stop", 1, 2) if shows else None

    why = MutationContext("q", reason="r", retention_owner=RetentionOwner.RLM)
    batch = MoveBatch((Move(0, 1, FINISHED, b"a", why=why), Move(0, 2, FINISHED)))
    plain = MoveBatch((Move(0, 1, FINISHED, why=MutationContext("q")),))
    assert shrunk(mismatch_of(Stop(0), batch), replay).operations == (plain,)


def test_expected_revisions_follow_the_dropped_operations() -> None:
    def replay(operations: Sequence[Operation]) -> Mismatch | None:
        last = operations[-1] if operations else None
        shows = isinstance(last, Move) and last.why.expected_revision == len(operations) - 1
        return Mismatch(tuple(operations), "Stop", 1, 2) if shows else None

    last = Move(0, 1, FINISHED, why=MutationContext(expected_revision=4))
    long = mismatch_of(Stop(0), Stop(1), Stop(2), Stop(3), last)
    assert len(shrunk(long, replay).operations) == 1


def test_it_ends_when_its_replays_are_used_up() -> None:
    replays = 0

    def replay(operations: Sequence[Operation]) -> Mismatch | None:
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
