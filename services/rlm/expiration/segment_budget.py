"""How many segments all passes of retention together may have in memory."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from services.rlm.ending import Flag

MAX_SEGMENTS = 100_000
"""Some 110 MiB, in the process. A pass lists its partition as a whole, and as many go on at once as
there are threads for it."""
_LOOK_EVERY_S = 0.1


class SegmentBudget:
    """Lets in the passes whose segments have room beside each other, one after the other as they
    came, so that a large one waits no longer than for those before it. One that has more than
    there is room for is let in alone. Thread-safe.
    """

    def __init__(self, segments: int = MAX_SEGMENTS) -> None:
        self._segments = segments
        self._taken = 0
        self._waiting: deque[Place] = deque()
        self._changed = threading.Condition()

    @property
    def waiting(self) -> int:
        """Passes that have no place yet."""
        return len(self._waiting)

    @contextmanager
    def place(self, segments: int, stopping: Flag) -> Iterator["Place | None"]:
        """Room for so many, once it is there, until the block ends; None: stopped before."""
        place = Place(self, min(segments, self._segments))
        if not self._enter(place, stopping):
            yield None
            return
        try:
            yield place
        finally:
            place.keep(0)

    def _enter(self, place: "Place", stopping: Flag) -> bool:
        with self._changed:
            self._waiting.append(place)
            try:
                while not self._may_enter(place):
                    if stopping.is_set():
                        return False
                    self._changed.wait(_LOOK_EVERY_S)
                self._taken += place.segments
                return True
            finally:
                self._waiting.remove(place)
                self._changed.notify_all()

    def _may_enter(self, place: "Place") -> bool:
        return self._waiting[0] is place and self._taken + place.segments <= self._segments

    def give_back(self, segments: int) -> None:
        with self._changed:
            self._taken -= segments
            self._changed.notify_all()


class Place:
    """Room for `segments`; of one pass."""

    def __init__(self, budget: SegmentBudget, segments: int) -> None:
        self._budget = budget
        self.segments = segments

    def keep(self, segments: int) -> None:
        """Give back what is not needed any more."""
        kept = min(segments, self.segments)
        self._budget.give_back(self.segments - kept)
        self.segments = kept
