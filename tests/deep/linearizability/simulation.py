"""Make legal concurrent histories from the model, with a simulated clock."""

from collections import Counter
from random import Random
from threading import Event as Stopping

from services.api.calls import MutationOutcome
from tests.deep.linearizability.draws import new_partitions
from tests.deep.linearizability.history import History, Recorder, TrailEntry
from tests.deep.linearizability.model import Step, asked
from tests.deep.linearizability.operations import (
    Changed,
    Lost,
    Operation,
    Read,
    Record,
    Setting,
)
from tests.deep.linearizability.workload import RandomClient
from tests.deep.model.partition import Event, Partition

_STEP = 10
_LONGEST_WAIT = 6 * _STEP
_LONGEST_LOSS = 60 * _STEP


def simulated(seed: int, count: int, share_lost: float) -> History:
    """`count` operations on one partition, each at some time between its request and its reply.

    A share of the mutations lose their reply; half of these never happen, and the others some time
    after they were asked for.
    """
    random = Random(seed)
    (used,) = new_partitions("simulated", 1, 0) if seed % 3 else new_partitions("dying", 0, 1)
    client = RandomClient("a", random, [], [used], Recorder(), Stopping())
    partition, events, records = Partition(), list[Event](), list[Record]()
    repeats = Counter[int]()
    for number in range(1, count + 1):
        operation = client.draw(used)
        is_read = isinstance(operation, Read)
        is_lost = not is_read and random.random() < share_lost
        happens = not is_lost or random.random() < 0.5
        step = asked(partition, operation)
        if happens:
            partition = step.partition
            events += step.events
            repeats.update(_repeated(operation, step))
        used.revision = partition.revision
        at = number * _STEP
        invoked = at - random.randrange(1, _LONGEST_LOSS if is_lost else _LONGEST_WAIT)
        records.append(
            Record(
                number,
                f"client-{number}",
                used.name,
                operation,
                Lost("simulated") if is_lost else step.reply,
                invoked,
                at + random.randrange(1, _LONGEST_WAIT),
            )
        )
    trail = [TrailEntry(used.name, event, repeats[event.revision]) for event in events]
    return History(records, {used.name: trail})


def _repeated(operation: Operation, step: Step) -> list[int]:
    """The revisions whose events count a repeat."""
    if not isinstance(step.reply, Changed):
        return []
    own = {event.revision for event in step.events}
    return [
        outcome.revision
        for outcome in step.reply.outcomes
        if isinstance(outcome, MutationOutcome)
        and outcome.revision not in own
        and (outcome.applied or not isinstance(operation, Setting))
    ]
