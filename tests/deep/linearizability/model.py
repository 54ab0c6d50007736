"""The reference model's answer to one operation on one partition."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from services.api.calls import MutationOutcome
from services.api.ids import TopicIdPartition
from tests.deep.linearizability.client import ask
from tests.deep.linearizability.operations import Operation, Reply
from tests.deep.model.partition import Change, Event, Partition
from tests.deep.model.reference import ReferenceRemoteLogMetadataManager

_TP = TopicIdPartition(UUID(int=1), "model", 0)


@dataclass(frozen=True, slots=True)
class Step:
    """The partition after an operation, and the reply. Without events nothing has changed."""

    partition: Partition
    reply: Reply
    events: Sequence[Event]


def asked(partition: Partition, operation: Operation) -> Step:
    """Ask the model for `operation` in this state of the partition."""
    model = _OnePartition(partition)
    reply = ask(model, _TP, operation)
    return Step(model.present, reply, model.events)


class _OnePartition(ReferenceRemoteLogMetadataManager):
    """The model with one partition, whatever its name."""

    def __init__(self, partition: Partition) -> None:
        super().__init__()
        self.present = partition
        self.events: Sequence[Event] = ()

    def partition(self, tp: TopicIdPartition) -> Partition:
        return self.present

    def require_name(self, partition: Partition, tp: TopicIdPartition) -> None:
        pass

    def keep(self, tp: TopicIdPartition, change: Change) -> MutationOutcome:
        self.present = change.partition
        self.events = (*self.events, *change.events)
        return change.outcome
