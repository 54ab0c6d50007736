"""The search finds what one without its shortcuts finds, and finds it in long histories."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from services.api.calls import MutationOutcome
from tests.deep.linearizability import search
from tests.deep.linearizability.checker import check, check_partition
from tests.deep.linearizability.history import History
from tests.deep.linearizability.model import asked
from tests.deep.linearizability.operations import (
    Answered,
    Changed,
    HighestOffset,
    Listed,
    ListSegments,
    LogSize,
    LookUp,
    Operation,
    Read,
    Record,
    Reply,
    UpdateBatch,
)
from tests.deep.linearizability.search import NotLinearizableError, UndecidedError
from tests.deep.linearizability.simulation import simulated
from tests.deep.linearizability.stories import LOST, TP, Story, add, announce, asked_as, item, move
from tests.deep.model.kafka_cache import DELETE_STARTED, FINISHED
from tests.deep.model.partition import Partition

TINY_HISTORIES, TINY_OPERATIONS = 4_000, 5
OPERATIONS: tuple[Operation, ...] = (
    add(1),
    add(1, why=asked_as("one")),
    add(2, 0, 19),
    move(1, FINISHED),
    move(1, FINISHED, why=asked_as("one")),
    move(2, FINISHED),
    move(1, DELETE_STARTED),
    UpdateBatch((item(1, FINISHED), item(2, FINISHED))),
    announce(1),
    ListSegments(),
    LookUp(0, 5),
)


def model_reply(partition: Partition, operation: Operation) -> tuple[Reply, Partition]:
    step = asked(partition, operation)
    return step.reply, step.partition


def has_order(partition: Partition, records: Sequence[Record]) -> bool:
    """By trying every order, to leave out any of the lost operations, and to make a change by a
    first attempt whose repeat is answered."""
    if all(record.is_lost for record in records):
        return True
    for record in records:
        left = [other for other in records if other is not record]
        if any(not each.is_lost and each.completed_ns < record.invoked_ns for each in left):
            continue
        reply, after = model_reply(partition, record.operation)
        if (record.is_lost or reply == record.reply) and has_order(after, left):
            return True
        is_repeat = reply != record.reply == model_reply(after, record.operation)[0]
        if is_repeat and after != partition and has_order(after, records):
            return True
    return False


def tiny_history(random: Random) -> list[Record]:
    """Some operations at random times, their replies true of one random order, perhaps of none."""
    operations = random.choices(OPERATIONS, k=TINY_OPERATIONS)
    partition, records = Partition(), list[Record]()
    for number, operation in enumerate(operations):
        reply, after = model_reply(partition, operation)
        if random.random() < 0.9:
            partition = after
        if random.random() < 0.25 and not isinstance(operation, Read):
            reply = LOST
        invoked = random.randrange(12)
        completed = invoked + random.randrange(1, 12)
        records.append(Record(number, "a", str(TP), operation, reply, invoked, completed))
    return records


def test_tiny_histories_are_judged_as_by_trying_every_order() -> None:
    verdicts = Counter[bool]()
    for seed in range(TINY_HISTORIES):
        records = tiny_history(Random(seed))
        expected = has_order(Partition(), records)
        try:
            check_partition(records)
            found = True
        except NotLinearizableError:
            found = False
        assert found == expected, f"seed {seed}: " + "\n".join(map(str, records))
        verdicts[found] += 1
    assert min(verdicts[True], verdicts[False]) > TINY_HISTORIES // 10


def test_long_legal_histories_are_accepted_with_their_trail_and_without() -> None:
    lost_changes = 0
    for seed in range(12):
        history = simulated(seed, count=400, share_lost=0.2)
        (order,) = check(history).values()
        (name,) = history.partitions
        assert len(history.trails[name]) == order.final.revision > 10
        check(History(history.records))
        lost_changes += sum(record.is_lost for record in order.changes)
    assert lost_changes > 50


def spoilt(record: Record) -> Reply | None:
    """An answer that no state gives; None where we know of none."""
    match record.operation, record.reply:
        case HighestOffset(), Answered(value=int(highest)) as reply:
            return replace(reply, value=highest + 1_000)
        case LogSize(), Answered(value=int(size)) as reply:
            return replace(reply, value=size + 1_000_000)
        case _, Listed(page) if page.segments:
            return Listed(replace(page, segments=page.segments[1:]))
        case _, Answered(revision=revision) as reply:
            return replace(reply, revision=revision + 10_000)
        case _, Changed((MutationOutcome(revision=revision),)):
            return Changed((MutationOutcome(True, revision + 10_000),))
    return None


@pytest.mark.parametrize("seed", range(12))
def test_one_wrong_answer_in_a_long_history_is_found(seed: int) -> None:
    history = simulated(100 + seed, count=400, share_lost=0.05)
    answers = [(record, spoilt(record)) for record in history.records if not record.is_lost]
    chosen = Random(seed).sample([each for each in answers if each[1] is not None], k=5)
    for record, reply in chosen:
        assert reply is not None
        wrong = replace(record, reply=reply)
        records = [wrong if each is record else each for each in history.records]
        with pytest.raises(NotLinearizableError) as caught:
            check(History(records, history.trails))
        assert wrong in caught.value.unexplained


def test_a_search_that_would_take_for_ever_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MAX_NODES", 50)
    story = Story()
    story.record(announce(1))
    for number in range(1, 9):
        story.record(add(number), LOST, at=(10, 11))
    story.record(ListSegments())
    wrong = story.record(HighestOffset(0), Answered(5, 9))
    with pytest.raises(UndecidedError):
        check(story.history())
    check(story.history(without=wrong))
