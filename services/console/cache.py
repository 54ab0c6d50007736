"""Cache answers for a moment, so that many browsers cost the services one query."""

import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from cachetools import TLRUCache

from services.common.single_flight import SingleFlight

T = TypeVar("T")
_Aged = tuple[float, Any]
"""How many seconds an answer may be cached, and the answer."""

MAX_ENTRIES = 256


class RecentAnswers:
    """Cache answers by key for some seconds; concurrent callers share one query. Thread-safe."""

    def __init__(
        self, max_entries: int = MAX_ENTRIES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        cache: TLRUCache[Hashable, _Aged] = TLRUCache(
            max_entries, lambda _, answer, now_s: now_s + answer[0], clock
        )
        self._flights: SingleFlight[Hashable, _Aged] = SingleFlight(cache)

    def get(self, key: Hashable, max_age_s: float, query: Callable[[], T]) -> T:
        """Return the answer of `query`, or one that came less than `max_age_s` ago.

        All callers of a key give the same `max_age_s`. An error is not cached.
        """
        answer: T = self._flights.run(key, lambda: (max_age_s, query()))[0][1]
        return answer
