"""Keep answers for a moment, so that many browsers cost the services one query."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from threading import Lock
from typing import Any, TypeVar

T = TypeVar("T")

MAX_ENTRIES = 256


class RecentAnswers:
    """Holds answers by key for some seconds; one thread asks, others wait for it. Thread-safe."""

    def __init__(
        self, max_entries: int = MAX_ENTRIES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._max_entries = max_entries
        self._lock = Lock()
        self._known: OrderedDict[Hashable, tuple[float, Future[Any]]] = OrderedDict()

    def get(self, key: Hashable, max_age_s: float, ask: Callable[[], T]) -> T:
        """Return the answer of `ask`, or one that is younger than `max_age_s`.

        An error is not kept: the next caller asks again.
        """
        with self._lock:
            known = self._known.get(key)
            # One that is still asked is for all who wait for it, however long that takes.
            is_new = known is None or (known[1].done() and self._clock() - known[0] >= max_age_s)
            if known is None or is_new:
                answer: Future[Any] = Future()
                self._known[key] = (self._clock(), answer)
                self._known.move_to_end(key)
                while len(self._known) > self._max_entries:
                    self._known.popitem(last=False)
            else:
                answer = known[1]
        if is_new:
            try:
                answer.set_result(ask())
            except BaseException as e:  # noqa: BLE001 - else waiting callers would wait for ever
                with self._lock:
                    current = self._known.get(key)
                    if current is not None and current[1] is answer:
                        del self._known[key]
                answer.set_exception(e)
        found: T = answer.result()
        return found
