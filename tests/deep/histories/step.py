"""Perform one operation on the model of one partition."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.deep.histories.model import Model
from tests.deep.histories.operations import Operation
from tests.deep.histories.partition import Event, Partition, Topic
from tests.deep.histories.space import Space


@dataclass(frozen=True, slots=True)
class Step:
    """The partition after an operation, and the reply. Without events nothing has changed."""

    partition: Partition
    reply: object
    events: Sequence[Event]


def unknown_partition(
    space: Space, tp: int, holds: Mapping[str, tuple[int, int]] | None = None
) -> Partition:
    """Return the partition before the first operation; `holds` are of its topic."""
    return Partition(topic=Topic(space.partitions[tp].topic, holds=holds or {}))


def step(partition: Partition, operation: Operation, space: Space) -> Step:
    """Perform an operation on the one partition that it names, in this state."""
    [tp] = {space.partitions[each] for each in operation.tps}
    model = Model(type(partition))
    model.put_partition(tp, partition)
    reply = operation.reply(model, space)
    return Step(model.partition(tp), reply, model.trail(tp))
