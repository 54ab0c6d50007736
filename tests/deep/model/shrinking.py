"""Shrink a long sequence that shows a mismatch to a short one that shows it too."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from services.api.calls import MutationContext
from tests.deep.histories.operations import Change, Import, MoveBatch, Operation
from tests.deep.model.comparison import MismatchError

T = TypeVar("T")

MAX_REPLAYS = 2_000

Replay = Callable[[Sequence[Operation]], MismatchError | None]


def shrunk(
    mismatch: MismatchError, replay: Replay, max_replays: int = MAX_REPLAYS
) -> MismatchError:
    """Return the mismatch after as few operations as can be found (delta debugging): none of them,
    nor a part of one, can be dropped alone, unless `max_replays` are used up first.

    Only what differs in the same kind of reply counts as the same mismatch: another fault that is
    met on the way does not replace the one that was found.
    """
    smallest, replays_left = mismatch, max_replays

    def shows(operations: Sequence[Operation]) -> bool:
        """Return whether they show the mismatch; then they replace those that did so far."""
        nonlocal smallest, replays_left
        if replays_left == 0 or tuple(operations) == smallest.operations:
            return False
        replays_left -= 1
        found = replay(operations)
        if found is None or found.what != mismatch.what:
            return False
        smallest = found
        return True

    *earlier, last = mismatch.operations
    shows([*(each for each in earlier if each.is_mutation), last])  # reads are many
    length = len(smallest.operations)
    while True:
        length, before = max(1, length // 2), smallest.operations
        for place in reversed(range(0, len(before), length)):
            kept, after = smallest.operations[:place], smallest.operations[place + length :]
            if not shows([*kept, *after]) and length == 1:
                shows([*kept, *map(_expecting_less, after)])
        if length > 1 or smallest.operations != before:
            continue
        if not any(
            shows([*before[:place], less, *before[place + 1 :]])
            for place, operation in enumerate(before)
            for less in _without_a_part(operation)
        ):
            return smallest


def _without_a_part(operation: Operation) -> Iterator[Operation]:
    """Yield a batch without each of its moves, an import without each message and each segment."""
    match operation:
        case MoveBatch(moves):
            yield from map(MoveBatch, _without_one(moves))
        case Import(messages=messages):
            for fewer in _without_one(messages):
                yield replace(operation, messages=fewer)
            for place, message in enumerate(messages):
                for less in _without_one(message):
                    changed = (*messages[:place], less, *messages[place + 1 :])
                    yield replace(operation, messages=changed)


def _without_one(parts: tuple[T, ...]) -> Iterator[tuple[T, ...]]:
    """Yield the parts without each one, as long as one is left."""
    if len(parts) > 1:
        yield from (parts[:place] + parts[place + 1 :] for place in range(len(parts)))


def _expecting_less(operation: Operation) -> Operation:
    """Return the operation as it would be sent after one change less."""
    if isinstance(operation, MoveBatch):
        return MoveBatch(tuple(replace(move, why=_less(move.why)) for move in operation.moves))
    if isinstance(operation, Change):
        return replace(operation, why=_less(operation.why))
    return operation


def _less(why: MutationContext) -> MutationContext:
    expected = why.expected_revision
    return replace(why, expected_revision=expected - 1) if expected else why
