"""Delays between attempts, and which errors are worth another."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import ldexp
from random import Random

from services.api.errors import ConcurrentUpdateError, RetriableRemoteStorageError, ThrottledError

RETRIABLE_ERRORS = (RetriableRemoteStorageError, ThrottledError, ConcurrentUpdateError)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential, more or less by chance, so that partitions do not come back together.

    Attributes:
        initial_s, max_s: the wait after the first failure, and the longest one, seconds, before
            jitter.
        jitter: each wait is longer or shorter by up to this share of it; 0 to 0.5.
    """

    initial_s: float = 1.0
    max_s: float = 60.0
    jitter: float = 0.2
    chance: Random = field(default_factory=Random)

    def delay_s(self, failures: int) -> float:
        """The wait after so many failures in a row, at least one."""
        # Beyond 2^31 every maximum is reached; much larger powers overflow a float.
        full = min(self.max_s, ldexp(self.initial_s, min(failures - 1, 31)))
        return full * self.chance.uniform(1.0 - self.jitter, 1.0 + self.jitter)


INTERVAL_S = 0.2

# A round that is later than this says that the process itself did not run, not that peers are late.
_STOPPED_S = 10 * INTERVAL_S


def rounds_in_time(
    pause: Callable[[float], bool], clock: Callable[[], float] = time.monotonic
) -> Iterator[float]:
    """When each round is, s on `clock`; a round that comes late is left out.

    What peers did while this process was stopped is here by the next round. `pause` waits for so
    many seconds, and answers True when there are to be no more rounds.
    """
    last = clock()
    while not pause(INTERVAL_S):
        now = clock()
        if now - last < _STOPPED_S:
            yield now
        last = clock()
