"""Perform the same operations on a manager and on the model, and compare every reply."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.api.ids import TopicIdPartition
from tests.deep.histories.model import Manager, Model
from tests.deep.histories.operations import Lost, Operation, as_python, script
from tests.deep.histories.partition import Event
from tests.deep.histories.space import RENAMED, Space


@dataclass(frozen=True)
class Subject:
    """The manager that is compared with the model.

    Attributes:
        trail_of: reads a partition's audit trail without the manager.
    """

    rlmm: Manager
    trail_of: Callable[[TopicIdPartition], Sequence[Event]]


class MismatchError(Exception):
    """Two replies differ: to the last one of `operations`, or in the audit trail after it.

    Attributes:
        what: the kind of the operation, or the audit trail.
    """

    def __init__(
        self, operations: Sequence[Operation], what: str, expected: object, actual: object
    ) -> None:
        super().__init__(
            f"{what}\n  the model:   {as_python(expected)}\n  the manager: {as_python(actual)}\n"
            f"after\n{script(operations)}"
        )
        self.operations = tuple(operations)
        self.what = what


class Comparison:
    """One run of some operations, on topics of its own."""

    def __init__(self, subject: Subject) -> None:
        self.model = Model()
        self.space = Space.of_two_topics()
        self._subject = subject
        self._performed: list[Operation] = []

    def perform(self, operation: Operation) -> object:
        """Perform the operation on both and return the reply.

        Raises:
            MismatchError: the replies differ, or there was none: no failure is expected here.
        """
        self._performed.append(operation)
        expected = operation.reply(self.model, self.space)
        actual = operation.reply(self._subject.rlmm, self.space)
        if actual != expected or isinstance(actual, Lost):
            raise MismatchError(self._performed, type(operation).__name__, expected, actual)
        return expected

    def compare_trails(self) -> None:
        """Raise MismatchError if an audit trail differs."""
        for tp in self.space.partitions[:RENAMED]:
            expected, actual = tuple(self.model.trail(tp)), tuple(self._subject.trail_of(tp))
            if actual != expected:
                raise MismatchError(self._performed, "audit trail", expected, actual)


def replay(operations: Sequence[Operation], subject: Subject) -> MismatchError | None:
    """Perform the operations; return the first mismatch, or None."""
    comparison = Comparison(subject)
    try:
        for operation in operations:
            comparison.perform(operation)
        comparison.compare_trails()
    except MismatchError as e:
        return e
    return None
