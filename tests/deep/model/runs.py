"""Run many sequences of drawn operations, one after another, and report what they covered."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import itemgetter
from random import Random

from tests.deep.histories.draws import EPOCHS, LAST_OFFSET, Draws
from tests.deep.histories.operations import (
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
    as_python,
    changes_in,
)
from tests.deep.histories.space import RENAMED
from tests.deep.model.cells import POSSIBLE_CELLS, Cell, cells_of
from tests.deep.model.comparison import Comparison, MismatchError, Subject, replay
from tests.deep.model.shrinking import shrunk

OPERATIONS_PER_SEQUENCE = 60
GRPC_SHARE = 10
"""One sequence of so many goes through gRPC."""


class DifferenceError(Exception):
    """The manager and the model differ; the message has the seed and a short script."""


@dataclass
class Tally:
    """What was done, over several sequences.

    Attributes:
        operations: those that were drawn; further_reads: those that show their effect.
        outcomes: by operation, how often each kind of answer was given.
    """

    sequences: int = 0
    operations: int = 0
    further_reads: int = 0
    cells: set[Cell] = field(default_factory=set)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def reached_share(self) -> float:
        return len(self.cells & POSSIBLE_CELLS) / len(POSSIBLE_CELLS)

    def __str__(self) -> str:
        lines = [
            f"{self.operations:,} operations in {self.sequences:,} sequences, and "
            f"{self.further_reads:,} reads of what they had changed: no undeclared difference"
        ]
        for operation, kinds in groupby(sorted(self.outcomes), key=itemgetter(0)):
            counts = [f"{kind} {self.outcomes[operation, kind]:,}" for _, kind in kinds]
            lines.append(f"  {operation:22} {', '.join(counts)}")
        lines.append(f"{self.reached_share:.1%} of cells (stored state, event, overlap) reached")
        lines += [
            f"  not reached: {as_python(cell)}"
            for cell in sorted(POSSIBLE_CELLS - self.cells, key=str)
        ]
        return "\n".join(lines)


def run(
    first_seed: int,
    operations: int,
    subject_of: Callable[[int], Subject],
    tally: Tally | None = None,
) -> Tally:
    """Run at least so many operations, in sequences from the seeds first_seed, first_seed + 1, ...

    Args:
        tally: counts them, with those before; None for a new one.

    Raises:
        DifferenceError: at the first mismatch.
    """
    tally = tally or Tally()
    while tally.operations < operations:
        seed = first_seed + tally.sequences
        subject = subject_of(seed)
        arguments = f"--seed {seed} --operations {OPERATIONS_PER_SEQUENCE}"
        again = f"again: python -m tests.deep.model {arguments}"
        try:
            _Sequence(seed, subject, tally).run()
        except MismatchError as e:
            smallest = shrunk(e, partial(replay, subject=subject))
            raise DifferenceError(
                f"seed {seed}, at operation {tally.operations} of the run: {smallest}\n{again}"
            ) from None
        except Exception as e:
            e.add_note(again)  # no answer of a manager: an error that the contract does not have
            raise
    return tally


class _Sequence:
    """Operations that are drawn from a seed, and reads of what each has changed."""

    def __init__(self, seed: int, subject: Subject, tally: Tally) -> None:
        self._comparison = Comparison(subject)
        self._model, self._space = self._comparison.model, self._comparison.space
        self._draws = Draws(Random(seed), self._model, self._space)
        self._random = Random(seed)
        self._tally = tally

    def run(self) -> None:
        """Raise MismatchError at the first difference."""
        self._tally.sequences += 1
        for _ in range(OPERATIONS_PER_SEQUENCE):
            operation = self._draws.next()
            self._tally.operations += 1
            self._tally.cells.update(cells_of(operation, self._model, self._space))
            before = self._revisions()
            reply = self._comparison.perform(operation)
            self._tally.outcomes[type(operation).__name__, _kind(reply)] += 1
            self._read(self._reads_after(operation, before != self._revisions()))
        self._read(self._last_reads())
        self._comparison.compare_trails()

    def _revisions(self) -> list[int]:
        return [self._model.partition(tp).revision for tp in self._space.partitions]

    def _read(self, reads: Iterator[Operation]) -> None:
        for read in reads:
            self._tally.further_reads += 1
            self._comparison.perform(read)

    def _reads_after(self, operation: Operation, has_changed: bool) -> Iterator[Operation]:
        """Yield what shows the effect, or that there is none: by the revision alone."""
        if not operation.is_mutation:
            return
        for tp in sorted({tp % RENAMED for tp in operation.tps}):
            yield (
                self._random.choice([ListSegments, LogStart])(tp)
                if has_changed
                else HighestOffset(tp, 0)
            )
        if has_changed:
            for each in _segments_of(operation):
                yield from self._reads_of_segment(each)

    def _reads_of_segment(self, change: Add | Move) -> Iterator[Operation]:
        """Yield some of the reads of each of its epochs, at the edges of its offsets."""
        tp, segment_id = change.tp, self._space.segment_id(change.tp, change.id)
        stored = self._model.partition(segment_id.topic_id_partition).segments.get(segment_id.id)
        for epoch, start, end in stored.epoch_ranges() if stored else ():
            yield self._random.choice([ListSegments, LogSize, HighestOffset])(tp, epoch)
            edges = {max(0, start - 1), start, max(0, end), end + 1}
            yield from (LookUp(tp, epoch, at) for at in self._random.choices(sorted(edges), k=2))

    def _last_reads(self) -> Iterator[Operation]:
        """Yield every read of the first partition, in which the most happened, and some more."""
        yield ListPartitions()
        for tp in range(RENAMED):
            yield ListSegments(tp)
            for epoch in EPOCHS:
                offsets = range(self._random.randrange(5), LAST_OFFSET + 4, 5 if tp == 0 else 40)
                yield from (LookUp(tp, epoch, offset) for offset in offsets)
        for epoch in EPOCHS:
            yield ListSegments(0, epoch)
            yield LogSize(0, epoch)
            yield HighestOffset(0, epoch)
            yield from (NextWithTxnIndex(0, epoch, offset) for offset in range(0, LAST_OFFSET, 15))


def _segments_of(operation: Operation) -> list[Add | Move]:
    """Return the changes of single segments that the operation consists of."""
    match operation:
        case Add() | Move():
            return [operation]
        case MoveBatch(moves):
            return [*moves]
        case Import(messages=messages):
            return [each for message in messages for each in message]
    return []


def _kind(reply: object) -> str:
    if isinstance(reply, type):
        return reply.__name__
    applied = {outcome.applied for outcome in changes_in(reply)}
    return "answered" if not applied else "applied" if True in applied else "repeated"
