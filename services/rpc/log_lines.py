"""Keeps what callers do from filling the log."""

import time
from collections.abc import Callable, Hashable
from threading import Lock

BURST = 10
LINES_PER_S = 1.0


class LineBudget:
    """So many lines at once for each kind, then so many a second.

    The kinds must be few: each is kept for ever.
    """

    def __init__(
        self,
        burst: int = BURST,
        lines_per_s: float = LINES_PER_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._burst = burst
        self._lines_per_s = lines_per_s
        self._now = now
        self._lock = Lock()
        self._kinds: dict[Hashable, _Kind] = {}

    def line(self, kind: Hashable) -> int | None:
        """How many lines of this kind were left out since the last one; None: leave this out."""
        with self._lock:
            now = self._now()
            state = self._kinds.setdefault(kind, _Kind(self._burst, now))
            earned = (now - state.at) * self._lines_per_s
            state.left = min(self._burst, state.left + earned)
            state.at = now
            if state.left < 1:
                state.left_out += 1
                return None
            state.left -= 1
            left_out, state.left_out = state.left_out, 0
            return left_out


class _Kind:
    __slots__ = ("at", "left", "left_out")

    def __init__(self, left: float, at: float) -> None:
        self.left = left
        self.at = at
        self.left_out = 0
