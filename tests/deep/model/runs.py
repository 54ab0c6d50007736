"""Run many sequences, one after another, and report what they covered."""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

from services.api.segments import RemoteLogSegmentState
from tests.deep.model.cells import ALL_CELLS, POSSIBLE_CELLS, Shape
from tests.deep.model.comparison import (
    OPERATIONS_PER_SEQUENCE,
    Subject,
    Tally,
    replay,
    run_sequence,
)
from tests.deep.model.shrinking import shrunk

GRPC_SHARE = 10
"""One sequence of so many goes through gRPC."""


class DifferenceError(Exception):
    """The manager and the model differ; the message has the seed and a short script."""


def run(
    first_seed: int,
    operations: int,
    subject_of: Callable[[int], Subject],
    progress: Callable[[Tally], None] = lambda tally: None,
) -> Tally:
    """At least so many operations, in sequences from the seeds first_seed, first_seed + 1, ...

    Raises:
        DifferenceError: at the first mismatch.
    """
    tally = Tally()
    while tally.operations < operations:
        seed = first_seed + tally.sequences
        subject = subject_of(seed)
        arguments = f"--seed {seed} --operations {OPERATIONS_PER_SEQUENCE}"
        again = f"again: python -m tests.deep.model {arguments}"
        try:
            mismatch = run_sequence(seed, OPERATIONS_PER_SEQUENCE, subject, tally)
        except Exception as e:
            e.add_note(again)  # no answer of a manager: an error that the contract does not have
            raise
        if mismatch is not None:
            smallest = shrunk(mismatch, partial(replay, subject=subject))
            raise DifferenceError(
                f"seed {seed}, at operation {tally.operations} of the run: {smallest}\n{again}"
            )
        progress(tally)
    return tally


def reached_share(tally: Tally) -> float:
    return len(tally.cells & POSSIBLE_CELLS) / len(POSSIBLE_CELLS)


def report(tally: Tally) -> Iterator[str]:
    """What was done and reached, in lines for people."""
    yield (
        f"{tally.operations:,} operations in {tally.sequences:,} sequences, and "
        f"{tally.further_reads:,} reads of what they had changed: no undeclared difference"
    )
    yield "answers:"
    by_operation: dict[str, Counter[str]] = {}
    for (operation, kind), times in tally.outcomes.items():
        by_operation.setdefault(operation, Counter())[kind] = times
    for operation, kinds in sorted(by_operation.items()):
        reported = ", ".join(f"{kind} {times:,}" for kind, times in kinds.most_common())
        yield f"  {operation:18} {reported}"
    yield from _cell_lines(tally)


def _cell_lines(tally: Tally) -> Iterator[str]:
    reached = tally.cells & POSSIBLE_CELLS
    yield (
        f"cells of (stored state x event x overlap shape): {len(reached)} of {len(POSSIBLE_CELLS)} "
        f"reached, {100 * reached_share(tally):.1f} %; "
        f"{len(ALL_CELLS) - len(POSSIBLE_CELLS)} more cannot exist"
    )
    yield f"  {'stored states, of those possible':34}" + "".join(
        f"{event.name:>25}" for event in RemoteLogSegmentState
    )
    for shape in Shape:
        row = [
            (sum(each.event is event and each.shape is shape for each in cells))
            for event in RemoteLogSegmentState
            for cells in (reached, POSSIBLE_CELLS)
        ]
        texts = [f"{got} / {of}" for got, of in zip(row[::2], row[1::2], strict=True)]
        yield f"  {shape.name:34}" + "".join(f"{text:>25}" for text in texts)
    for cell in sorted(POSSIBLE_CELLS - reached, key=str):
        stored = cell.stored.name if cell.stored else "not known"
        yield f"  not reached: {stored}, {cell.event.name}, {cell.shape.name}"
