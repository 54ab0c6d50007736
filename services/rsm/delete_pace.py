"""How fast objects are deleted: as fast as the store takes it, and never above a limit."""

from collections.abc import Callable
from threading import Lock

from services.rsm.rate_limit import RateLimit
from services.rsm.waiting import Waiting

# From the least to the most in a dozen requests that the store takes; from the most to the least
# in six that it refuses.
_LEAST_SHARE = 1 / 64
_STEP_SHARE = 1 / 12


class DeletePace:
    """A rate of keys that is halved where the store has no time, and grows by steps while it has.

    Thread-safe; shared by all deletes of a process.
    """

    def __init__(self, most_keys_per_s: int, waiting: Waiting) -> None:
        self._most = float(most_keys_per_s)
        self._waiting = waiting
        self._lock = Lock()
        self._limit = RateLimit(self._most, waiting)
        self._slowed_at_s = waiting.now()

    @property
    def keys_per_s(self) -> float:
        return self._limit.per_s

    def take(self, keys: int, is_wanted: Callable[[], bool]) -> float:
        """Wait until so many keys may be deleted; answer when that was, for `slow_down`."""
        self._limit.take(keys, is_wanted)
        return self._waiting.now()

    def take_at_once(self, keys: int) -> float:
        """As `take`, of so few keys that nobody notices: they wait for no turn, and others make up
        for them."""
        self._limit.take_at_once(keys)
        return self._waiting.now()

    def slow_down(self, began_s: float) -> None:
        """The store had no time for a request that began then.

        Of requests under way at once, which fail for one reason, the first alone counts.
        """
        with self._lock:
            if began_s >= self._slowed_at_s:
                self._slowed_at_s = self._waiting.now()
                self._limit.change(max(self._limit.per_s / 2, self._most * _LEAST_SHARE))

    def speed_up(self) -> None:
        """The store did what was asked."""
        with self._lock:
            self._limit.change(min(self._limit.per_s + self._most * _STEP_SHARE, self._most))
