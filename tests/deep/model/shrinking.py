"""From a long sequence that shows a mismatch to a short one that shows it too (delta debugging)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, fields, replace
from typing import Any, TypeVar

from services.api.calls import MutationContext
from tests.deep.model.comparison import Mismatch
from tests.deep.model.operations import (
    Add,
    Move,
    MoveBatch,
    Operation,
    PutDeletion,
    RaiseLogStart,
)

MAX_REPLAYS = 2_000

Replay = Callable[[Sequence[Operation]], Mismatch | None]
Said = TypeVar("Said", bound=Operation | MutationContext)


def shrunk(mismatch: Mismatch, replay: Replay, max_replays: int = MAX_REPLAYS) -> Mismatch:
    """The mismatch after as few and as plain operations as can be found: none of them can be
    dropped alone, and nothing said in one left out, unless `max_replays` are used up first.

    Only what differs in the same kind of answer counts as the same mismatch: another fault that is
    met on the way does not replace the one that was found.
    """
    shrinker = _Shrinker(mismatch, replay, max_replays)
    shrinker.drop_reads()
    length = len(shrinker.mismatch.operations)
    while True:
        before = shrinker.mismatch.operations
        length = max(1, length // 2)
        shrinker.drop(length)
        if length == 1:
            shrinker.say_less()
            if shrinker.mismatch.operations == before:
                return shrinker.mismatch


class _Shrinker:
    def __init__(self, mismatch: Mismatch, replay: Replay, max_replays: int) -> None:
        self.mismatch = mismatch
        self._replay = replay
        self._replays_left = max_replays

    def drop_reads(self) -> None:
        """All but the last operation at once: they are many, and change nothing."""
        *earlier, last = self.mismatch.operations
        self._try([*(operation for operation in earlier if operation.is_mutation), last])

    def drop(self, length: int) -> None:
        """Drop runs of so many operations, wherever the mismatch stays."""
        for place in reversed(range(0, len(self.mismatch.operations), length)):
            before, after = self._around(place, length)
            dropped = self._try([*before, *after])
            if not dropped and length == 1:
                self._try([*before, *map(_expecting_less, after)])

    def say_less(self) -> None:
        """Leave out what can be left out of each operation, one thing after another."""
        for place in reversed(range(len(self.mismatch.operations))):
            while self._say_less_at(place):
                pass

    def _say_less_at(self, place: int) -> bool:
        before, after = self._around(place, 1)
        return any(
            self._try([*before, plainer, *after])
            for operation in self.mismatch.operations[place : place + 1]
            for plainer in _plainer(operation)
        )

    def _around(self, place: int, length: int) -> tuple[Sequence[Operation], Sequence[Operation]]:
        operations = self.mismatch.operations
        return operations[:place], operations[place + length :]

    def _try(self, operations: Sequence[Operation]) -> bool:
        """True: they show the mismatch, and take the place of those that did so far."""
        if self._replays_left == 0 or tuple(operations) == self.mismatch.operations:
            return False
        self._replays_left -= 1
        found = self._replay(operations)
        if found is None or found.what != self.mismatch.what:
            return False
        self.mismatch = found
        return True


def _expecting_less(operation: Operation) -> Operation:
    """As it would be said after one change less."""
    if isinstance(operation, MoveBatch):
        return MoveBatch(tuple(replace(move, why=_less(move.why)) for move in operation.moves))
    if isinstance(operation, Add | Move | PutDeletion | RaiseLogStart):
        return replace(operation, why=_less(operation.why))
    return operation


def _less(why: MutationContext) -> MutationContext:
    expected = why.expected_revision
    return replace(why, expected_revision=expected - 1) if expected else why


def _plainer(operation: Operation) -> Iterator[Operation]:
    """The same call with one thing less said."""
    if isinstance(operation, MoveBatch):
        for place, move in enumerate(operation.moves):
            before, after = operation.moves[:place], operation.moves[place + 1 :]
            yield MoveBatch((*before, *after))
            for plainer in _without_one_thing(move):
                yield MoveBatch((*before, plainer, *after))
    else:
        yield from _without_one_thing(operation)


def _without_one_thing(said: Said) -> Iterator[Said]:
    for each in fields(said):
        value: Any = getattr(said, each.name)
        if each.default is MISSING or value == each.default:
            continue
        default: dict[str, Any] = {each.name: each.default}
        yield replace(said, **default)
        if isinstance(value, MutationContext):
            for why in _without_one_thing(value):
                plainer: dict[str, Any] = {each.name: why}
                yield replace(said, **plainer)
