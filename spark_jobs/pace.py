"""Hold a task to its share of --segments-per-s."""

import time
from collections.abc import Callable


class Pace:
    """Let through so many segments a second, no matter in which portions. Not thread-safe."""

    def __init__(
        self,
        per_s: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Args: per_s: None for no limit."""
        self._per_s = per_s
        self._clock = clock
        self._sleep = sleep
        self._free_at_s = clock()

    def wait_for(self, segments: int) -> None:
        """Wait until the segments before these have had their time."""
        if self._per_s is None:
            return
        now_s = self._clock()
        self._sleep(max(0.0, self._free_at_s - now_s))
        self._free_at_s = max(self._free_at_s, now_s) + segments / self._per_s
