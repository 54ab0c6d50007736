"""Which task is due next, of however many: no step looks at all of them."""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from itertools import count

_FEW = 64


class WaitingTasks:
    """Keys, each with the moment at which it is due, s on any clock. Not thread-safe."""

    def __init__(self) -> None:
        self._turns: dict[Hashable, tuple[float, int, Hashable]] = {}
        # Also has turns that were taken back or moved, until they come to its top or are many.
        self._heap: list[tuple[float, int, Hashable]] = []
        # Of two that are due at one moment the earlier comer is first; keys need have no order.
        self._numbers = count()

    def put(self, key: Hashable, due_s: float) -> None:
        """Let it wait until then; a key that waits already has this turn in place of its own."""
        turn = (due_s, next(self._numbers), key)
        self._turns[key] = turn
        heappush(self._heap, turn)
        if len(self._heap) > 2 * len(self._turns) + _FEW:
            self._heap = list(self._turns.values())
            heapify(self._heap)

    def discard(self, key: Hashable) -> None:
        self._turns.pop(key, None)

    def take_due(self, now_s: float) -> Hashable | None:
        """The key that has been due for longest, which waits no more; None: none is due."""
        due_s = self.next_due_s()
        if due_s is None or due_s > now_s:
            return None
        _, _, key = heappop(self._heap)
        del self._turns[key]
        return key

    def next_due_s(self) -> float | None:
        """When the next one is due; None: none waits."""
        while self._heap and self._turns.get(self._heap[0][2]) is not self._heap[0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None
