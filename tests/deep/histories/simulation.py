"""Make legal concurrent histories from the model, with a simulated clock."""

from collections import Counter
from random import Random

from tests.deep.histories.checker import SETTINGS
from tests.deep.histories.draws import ConcurrentDraws, SharedModel
from tests.deep.histories.history import History, Record, TrailEntry
from tests.deep.histories.operations import Lost, Operation, changes_in
from tests.deep.histories.partition import Event, Partition, Topic
from tests.deep.histories.space import Space
from tests.deep.histories.step import Step, step

HELD = (29, 35)
"""The offsets of the hold that some histories have: some segments end or begin at its borders."""
_STEP = 10
_LONGEST_WAIT = 6 * _STEP
_LONGEST_LOSS = 60 * _STEP


def simulated(
    seed: int, count: int, share_lost: float, partition_class: type[Partition] = Partition
) -> History:
    """Make a history of one partition, each operation at some time between request and reply.

    A share of the mutations lose their reply; half of these never happen, and the others some time
    after they were sent.

    Args:
        count: of operations.
        partition_class: the model, perhaps with a fault: then the history is not legal.
    """
    random, space = Random(seed), Space.of_partitions(1)
    shared = SharedModel(space, dying=(0,) if seed % 3 == 0 else ())
    draws = ConcurrentDraws(random, shared)
    holds = {"audit": HELD} if seed % 16 == 9 else {}
    partition = partition_class(topic=Topic(space.partitions[0].topic, holds=holds))
    events, records, repeats = list[Event](), list[Record](), Counter[int]()
    for number in range(1, count + 1):
        operation = draws.next()
        is_lost = operation.is_mutation and random.random() < share_lost
        happens = not is_lost or random.random() < 0.5
        made = step(partition, operation, space)
        if happens:
            partition = made.partition
            events += made.events
            repeats.update(_repeated(operation, made))
        shared.model.put_partition(space.partitions[0], partition)
        at = number * _STEP
        invoked = at - random.randrange(1, _LONGEST_LOSS if is_lost else _LONGEST_WAIT)
        completed = at + random.randrange(1, _LONGEST_WAIT)
        reply = Lost("simulated") if is_lost else made.reply
        records.append(Record(number, f"client-{number}", operation, reply, invoked, completed))
    trail = [TrailEntry(event, repeats[event.revision]) for event in events]
    return History(space, records, {0: trail}, holds)


def _repeated(operation: Operation, made: Step) -> list[int]:
    """Return the revisions whose events count a repeat."""
    own = {event.revision for event in made.events}
    return [
        outcome.revision
        for outcome in changes_in(made.reply)
        if outcome.revision not in own and (outcome.applied or not isinstance(operation, SETTINGS))
    ]
