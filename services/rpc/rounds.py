"""The rounds of those who look again and again for peers that are late."""

import time
from collections.abc import Callable, Iterator

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
