"""Make the same calls of a manager and of the model, and compare every answer."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from services.api.ids import TopicIdPartition
from tests.deep.model.cells import Cell, cells_of
from tests.deep.model.generator import EPOCHS, LAST_OFFSET, Generator
from tests.deep.model.operations import (
    RENAMED,
    Add,
    HighestOffset,
    Import,
    ListPartitions,
    ListSegments,
    LogSize,
    LogStart,
    LookUp,
    Move,
    MoveBatch,
    NextWithTxnIndex,
    Operation,
    Space,
    script,
)
from tests.deep.model.partition import Event
from tests.deep.model.reference import Manager, ReferenceRemoteLogMetadataManager

OPERATIONS_PER_SEQUENCE = 60
AUDIT_TRAIL = "audit trail"

TrailOf = Callable[[TopicIdPartition], Sequence[Event]]


@dataclass(frozen=True)
class Subject:
    """The manager that is compared with the model.

    Attributes:
        trail_of: reads a partition's audit trail without the manager.
    """

    rlmm: Manager
    trail_of: TrailOf


def reference_subject(manager: ReferenceRemoteLogMetadataManager) -> Subject:
    """Return a model, perhaps with a fault, in the manager's place."""
    return Subject(manager, manager.trail)


@dataclass(frozen=True)
class Mismatch:
    """Two answers that differ: to the last one of `operations`, or in the audit trail after it."""

    operations: tuple[Operation, ...]
    what: str
    expected: object
    actual: object

    def __str__(self) -> str:
        return (
            f"{self.what}\n  the model:   {self.expected}\n  the manager: {self.actual}\n"
            f"after\n{script(self.operations)}"
        )


@dataclass
class Tally:
    """What was done, over several sequences.

    Attributes:
        operations: those that the generator drew; further_reads: those made to see their effect.
        outcomes: by operation, how often each kind of answer was given.
    """

    sequences: int = 0
    operations: int = 0
    further_reads: int = 0
    cells: set[Cell] = field(default_factory=set)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)


class Comparison:
    """One run of some operations, on topics of its own."""

    def __init__(self, subject: Subject) -> None:
        self.model = ReferenceRemoteLogMetadataManager()
        self.space = Space()
        self._subject = subject
        self._made: list[Operation] = []

    def make(self, operation: Operation) -> tuple[object, Mismatch | None]:
        """Make the call of both; the model's answer, and the mismatch if there is one."""
        self._made.append(operation)
        expected = operation.outcome(self.model, self.space)
        actual = operation.outcome(self._subject.rlmm, self.space)
        if actual == expected:
            return expected, None
        return expected, self._mismatch(type(operation).__name__, expected, actual)

    def compare_trails(self) -> Mismatch | None:
        for tp in self.space.partitions[:RENAMED]:
            expected = list(self.model.trail(tp))
            actual = list(self._subject.trail_of(tp))
            if actual != expected:
                return self._mismatch(AUDIT_TRAIL, expected, actual)
        return None

    def _mismatch(self, what: str, expected: object, actual: object) -> Mismatch:
        return Mismatch(tuple(self._made), what, expected, actual)


def replay(operations: Sequence[Operation], subject: Subject) -> Mismatch | None:
    """Make the calls; the first mismatch, or None."""
    comparison = Comparison(subject)
    for operation in operations:
        _, mismatch = comparison.make(operation)
        if mismatch is not None:
            return mismatch
    return comparison.compare_trails()


def run_sequence(seed: int, operations: int, subject: Subject, tally: Tally) -> Mismatch | None:
    """Draw so many operations from the seed, and read what each has changed; the first mismatch."""
    comparison = Comparison(subject)
    model, space = comparison.model, comparison.space
    generator, reading = Generator(seed, model, space), Random(seed)
    tally.sequences += 1
    for _ in range(operations):
        operation = generator.next()
        tally.operations += 1
        tally.cells.update(cells_of(operation, model, space))
        before = _revisions(model, space)
        answer, mismatch = comparison.make(operation)
        tally.outcomes[type(operation).__name__, _kind(answer)] += 1
        has_changed = before != _revisions(model, space)
        reads = _reads_after(operation, has_changed, model, space, reading)
        mismatch = mismatch or _read(comparison, reads, tally)
        if mismatch is not None:
            return mismatch
    return _read(comparison, _last_reads(reading), tally) or comparison.compare_trails()


def _revisions(model: ReferenceRemoteLogMetadataManager, space: Space) -> list[int]:
    return [model.partition(tp).revision for tp in space.partitions]


def _read(comparison: Comparison, reads: Iterator[Operation], tally: Tally) -> Mismatch | None:
    for read in reads:
        tally.further_reads += 1
        _, mismatch = comparison.make(read)
        if mismatch is not None:
            return mismatch
    return None


def _kind(answer: object) -> str:
    if isinstance(answer, type):
        return answer.__name__
    applied = getattr(answer, "applied", None)
    return {None: "answered", True: "applied", False: "repeated"}[applied]


def _reads_after(
    operation: Operation,
    has_changed: bool,
    model: ReferenceRemoteLogMetadataManager,
    space: Space,
    reading: Random,
) -> Iterator[Operation]:
    """What shows the effect, or that there is none: by the revision alone in that case."""
    moves = _parts(operation)
    tps = sorted({getattr(move, "tp", 0) % RENAMED for move in moves})
    if not operation.is_mutation:
        return
    if not has_changed:
        yield from (HighestOffset(tp, 0) for tp in tps)
        return
    yield from (reading.choice([ListSegments, LogStart])(tp) for tp in tps)
    for move in moves:
        if isinstance(move, Add | Move):
            yield from _reads_of_segment(move, model, space, reading)


def _parts(operation: Operation) -> Sequence[Operation]:
    """What it does to each segment, where it does so to several."""
    if isinstance(operation, MoveBatch):
        return operation.moves
    if isinstance(operation, Import):
        return [each for message in operation.messages for each in message] or [operation]
    return [operation]


def _reads_of_segment(
    move: Add | Move,
    model: ReferenceRemoteLogMetadataManager,
    space: Space,
    reading: Random,
) -> Iterator[Operation]:
    """Some of the reads of each of its epochs, at the edges of its offsets."""
    segment_id = space.segment_id(move.tp, move.id)
    stored = model.partition(segment_id.topic_id_partition).segments.get(segment_id.id)
    for epoch, start, end in stored.epoch_ranges() if stored else ():
        yield reading.choice([ListSegments, LogSize, HighestOffset])(move.tp, epoch)
        edges = {max(0, start - 1), start, max(0, end), end + 1}
        yield from (LookUp(move.tp, epoch, at) for at in reading.choices(sorted(edges), k=2))


def _last_reads(reading: Random) -> Iterator[Operation]:
    """Every read of the first partition, in which the most happened, and some of the others."""
    yield ListPartitions()
    for tp in range(RENAMED):
        yield ListSegments(tp)
        for epoch in EPOCHS:
            offsets = range(reading.randrange(5), LAST_OFFSET + 4, 5 if tp == 0 else 40)
            yield from (LookUp(tp, epoch, offset) for offset in offsets)
    for epoch in EPOCHS:
        yield ListSegments(0, epoch)
        yield LogSize(0, epoch)
        yield HighestOffset(0, epoch)
        yield from (NextWithTxnIndex(0, epoch, offset) for offset in range(0, LAST_OFFSET, 15))
