"""The search finds what one without its shortcuts finds, and finds it in long histories."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from services.api.calls import AtRevision, MutationOutcome
from tests.contract.rlmm.segments import DELETE_STARTED, FINISHED
from tests.deep.histories import search
from tests.deep.histories.checker import check
from tests.deep.histories.history import History, Record
from tests.deep.histories.mutants import MUTANTS, Mutant
from tests.deep.histories.operations import (
    HighestOffset,
    ListSegments,
    LogSize,
    LookUp,
    Move,
    MoveBatch,
    Operation,
    Page,
)
from tests.deep.histories.partition import Partition
from tests.deep.histories.search import NotLinearizableError, UndecidedError
from tests.deep.histories.simulation import simulated
from tests.deep.histories.step import step, unknown_partition
from tests.deep.histories.stories import LOST, SPACE, Story, add, announce, once

TINY_HISTORIES, TINY_OPERATIONS = 4_000, 5
NOT_DRAWN = {
    *("another_for_offset", "preferred", "renewed", "imported", "as_taken", "is_same"),
    *("require_no_hold", "require_owner", "with_object_deletions"),
    *("with_gap", "lost_from", "lost_with", "has_finished"),
}
"""Rules that concurrent clients never meet, or rarely."""
OPERATIONS: tuple[Operation, ...] = (
    add(1),
    add(1, why=once("one")),
    add(2, 0, 19),
    Move(0, 1, FINISHED),
    Move(0, 1, FINISHED, why=once("one")),
    Move(0, 2, FINISHED),
    Move(0, 1, DELETE_STARTED),
    MoveBatch((Move(0, 1, FINISHED), Move(0, 2, FINISHED))),
    MoveBatch((Move(0, 1, FINISHED, why=once("both")), Move(0, 2, FINISHED))),
    announce(1),
    ListSegments(0),
    LookUp(0, 0, 5),
)
UNKNOWN = unknown_partition(SPACE, 0)


def has_order(partition: Partition, records: Sequence[Record]) -> bool:
    """By trying every order, to leave out any of the lost operations, and to make a change by a
    first attempt whose repeat is answered."""
    if all(record.is_lost for record in records):
        return True
    for record in records:
        left = [other for other in records if other is not record]
        if any(not each.is_lost and each.completed_ns < record.invoked_ns for each in left):
            continue
        made = step(partition, record.operation, SPACE)
        after = made.partition
        if (record.is_lost or made.reply == record.reply) and has_order(after, left):
            return True
        is_repeat = made.reply != record.reply == step(after, record.operation, SPACE).reply
        if is_repeat and after != partition and has_order(after, records):
            return True
    return False


def tiny_history(random: Random) -> list[Record]:
    """Some operations at random times, their replies true of one random order, perhaps of none."""
    operations = random.choices(OPERATIONS, k=TINY_OPERATIONS)
    partition, records = UNKNOWN, list[Record]()
    for number, operation in enumerate(operations):
        made = step(partition, operation, SPACE)
        if random.random() < 0.9:
            partition = made.partition
        is_lost = random.random() < 0.25 and operation.is_mutation
        reply = LOST if is_lost else made.reply
        invoked = random.randrange(12)
        completed = invoked + random.randrange(1, 12)
        records.append(Record(number, "a", operation, reply, invoked, completed))
    return records


def test_tiny_histories_are_judged_as_by_trying_every_order() -> None:
    verdicts = Counter[bool]()
    for seed in range(TINY_HISTORIES):
        records = tiny_history(Random(seed))
        expected = has_order(UNKNOWN, records)
        try:
            check(History(SPACE, records))
            found = True
        except NotLinearizableError:
            found = False
        assert found == expected, f"seed {seed}: " + "\n".join(map(str, records))
        verdicts[found] += 1
    assert min(verdicts[True], verdicts[False]) > TINY_HISTORIES // 10


def test_long_legal_histories_are_accepted_with_their_trail_and_without() -> None:
    lost_changes = 0
    for seed in range(12):
        history = simulated(seed, count=200, share_lost=0.2)
        (order,) = check(history).values()
        assert len(history.trails[0]) == order.final.revision > 10
        check(replace(history, trails={}))
        lost_changes += sum(record.is_lost for record in order.changes)
    assert lost_changes > 25


def spoilt(record: Record) -> object:
    """Return an answer that no state gives; None if none is known."""
    match record.operation, record.reply:
        case HighestOffset(), AtRevision(value=int(highest)) as reply:
            return replace(reply, value=highest + 1_000)
        case LogSize(), AtRevision(value=int(size)) as reply:
            return replace(reply, value=size + 1_000_000)
        case _, (Page(segments=[_, *others]) as page,):
            return (replace(page, segments=tuple(others)),)
        case _, AtRevision(revision=revision) as reply:
            return replace(reply, revision=revision + 10_000)
        case _, MutationOutcome(revision=revision):
            return MutationOutcome(True, revision + 10_000)
    return None


@pytest.mark.parametrize("method", sorted({each.method for each in MUTANTS} - NOT_DRAWN))
def test_histories_of_most_mutants_of_a_rule_are_refused(method: str) -> None:
    mutants = [each for each in MUTANTS if each.method == method]
    assert sum(map(is_refused, mutants)) >= len(mutants) / 2


def is_refused(mutant: Mutant) -> bool:
    """Return whether a history of the mutant is no history of the model, if it makes one at all."""
    try:
        for seed in range(0, 36, 3):  # of dying partitions
            check(simulated(seed, 400, 0.02, mutant.partition_class()))
    except (NotLinearizableError, LookupError, TypeError, AttributeError):
        return True
    return False


@pytest.mark.parametrize("seed", range(12))
def test_one_wrong_answer_in_a_long_history_is_found(seed: int) -> None:
    history = simulated(100 + seed, count=400, share_lost=0.05)
    answers = [(record, spoilt(record)) for record in history.records if not record.is_lost]
    chosen = Random(seed).sample([each for each in answers if each[1] is not None], k=5)
    for record, reply in chosen:
        wrong = replace(record, reply=reply)
        records = [wrong if each is record else each for each in history.records]
        with pytest.raises(NotLinearizableError) as caught:
            check(replace(history, records=records))
        assert wrong in caught.value.unexplained


def test_a_search_that_would_take_for_ever_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MAX_NODES", 50)
    story = Story()
    story.record(announce(1))
    for number in range(1, 9):
        story.record(add(number), LOST, at=(10, 11))
    story.record(ListSegments(0))
    wrong = story.record(HighestOffset(0, 0), AtRevision(5, 9))
    with pytest.raises(UndecidedError):
        check(story.history())
    check(story.history(without=wrong))
