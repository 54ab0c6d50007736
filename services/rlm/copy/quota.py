"""Bound how many bytes a second all copies of a process read together (KIP-956)."""

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import takewhile

from services.api.validation import INT64_MAX
from services.rlm.metrics import COPY_THROTTLE_SECONDS

_SOONEST_S = 0.5
"""Nobody is told to ask again sooner. What passes late is made up for by the rate's windows."""

_COMES_WITHIN_S = 1.0
"""After the moment that it was told. Whose pass takes longer than that keeps nobody waiting."""

_READS_WITHIN_S = 10.0
"""Who may pass and reads its segment before it does."""


@dataclass(frozen=True, slots=True)
class CopyQuotaLimit:
    """
    Attributes:
        max_bytes_per_second: INT64_MAX: no limit.
        windows, window_s: the rate is taken over so many windows of so many seconds.
    """

    max_bytes_per_second: int = INT64_MAX
    windows: int = 11
    window_s: int = 1


@dataclass(slots=True)
class _Sample:
    """What was recorded within one window."""

    start_s: float
    size_bytes: int


@dataclass(slots=True)
class _Waiting:
    """Who asked and could not pass, and since when.

    Attributes:
        awaited_until_s: the others let it go first; from then on it has its place only when it
            comes.
    """

    size_bytes: int
    is_wanted: Callable[[], bool]
    since_s: float
    awaited_until_s: float


class CopyQuota:
    """Lets one segment after the other pass, whole and whatever its size, while the rate is within
    the limit; each counts from the moment in which it passes. Nobody waits in here: who may not
    pass keeps its place and is told when to ask again. First come, first served; but who does not
    come back when it was told to is not waited for. Thread-safe.

    Kafka forgets a segment with its window, so that one that is larger than all windows allow
    exceeds the limit for good. Here it is counted until the limit has made up for it.

    Args:
        clock: seconds that only grow.
    """

    def __init__(
        self,
        limit: CopyQuotaLimit | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = limit or CopyQuotaLimit()
        self._clock = clock
        self._lock = threading.Lock()
        # In the order of coming.
        self._waiting: dict[Hashable, _Waiting] = {}
        self._samples: deque[_Sample] = deque()

    def admit(self, who: Hashable, size_bytes: int, is_wanted: Callable[[], bool]) -> float:
        """Count a segment of `size_bytes` and answer 0 if it may be copied now; else, with nothing
        counted, after how many seconds to ask again.

        Args:
            who: has one place; to be withdrawn when its next segment is not asked for any more.
            is_wanted: False: the place is free, though nobody has withdrawn.
        """
        with self._lock:
            now_s = self._clock()
            wait_s = self._wait_s(who, size_bytes, is_wanted, now_s)
            if not wait_s:
                self._leave(who, now_s)
                self._record(size_bytes, now_s)
            return wait_s

    def seconds_until(self, who: Hashable, size_bytes: int, is_wanted: Callable[[], bool]) -> float:
        """As `admit`, but counts nothing: for who has something to do before it is admitted."""
        with self._lock:
            return self._wait_s(who, size_bytes, is_wanted, self._clock())

    def withdraw(self, who: Hashable) -> None:
        """Give up the place of `who`, if it has one."""
        with self._lock:
            self._leave(who, self._clock())

    def _wait_s(
        self, who: Hashable, size_bytes: int, is_wanted: Callable[[], bool], now_s: float
    ) -> float:
        is_above = self._is_above(now_s)
        waiting = self._waiting.get(who)
        if not is_above and self._first(who, now_s) in (None, who):
            if waiting is not None:
                waiting.awaited_until_s = now_s + _READS_WITHIN_S
            return 0.0
        wait_s = self._free_s() - now_s if is_above else 0.0
        ahead_s = self._ahead_bytes(who, now_s) / self._limit.max_bytes_per_second
        wait_s = max(wait_s + ahead_s, _SOONEST_S)
        since_s = now_s if waiting is None else waiting.since_s
        until_s = now_s + wait_s + _COMES_WITHIN_S
        self._waiting[who] = _Waiting(size_bytes, is_wanted, since_s, until_s)
        return wait_s

    def _first(self, who: Hashable, now_s: float) -> Hashable | None:
        """Who waits for longest, of `who` has come and those that still want to pass and are
        awaited."""
        for name, waiting in list(self._waiting.items()):
            if not waiting.is_wanted():
                self._leave(name, now_s)
            elif name == who or now_s <= waiting.awaited_until_s:
                return name
        return None

    def _ahead_bytes(self, who: Hashable, now_s: float) -> int:
        """What those pass first who came before and are awaited."""
        ahead = takewhile(lambda item: item[0] != who, self._waiting.items())
        return sum(w.size_bytes for _, w in ahead if now_s <= w.awaited_until_s)

    def _free_s(self) -> float:
        """When the rate, which is above the limit, is within it if nothing else passes."""
        total_bytes = sum(sample.size_bytes for sample in self._samples)
        free_s = 0.0
        for sample in self._samples:
            made_up_s = sample.start_s + total_bytes / self._limit.max_bytes_per_second
            over_s = self._over_s(sample)
            if max(made_up_s, free_s) <= over_s:
                return max(made_up_s, free_s)
            total_bytes -= sample.size_bytes
            free_s = max(free_s, over_s)
        return free_s

    def _leave(self, who: Hashable, now_s: float) -> None:
        left = self._waiting.pop(who, None)
        if left is not None:
            COPY_THROTTLE_SECONDS.observe(now_s - left.since_s)

    def _is_above(self, now_s: float) -> bool:
        """Whether the rate is above the limit."""
        limit, samples = self._limit, self._samples
        while samples and now_s >= self._over_s(samples[0]):
            samples.popleft()
        if not samples:
            return False
        total_bytes = sum(sample.size_bytes for sample in samples)
        over_s = max(now_s - samples[0].start_s, limit.window_s)
        return total_bytes > limit.max_bytes_per_second * over_s

    def _over_s(self, sample: _Sample) -> float:
        """When it is forgotten."""
        limit = self._limit
        paid_s = sample.size_bytes / limit.max_bytes_per_second
        return sample.start_s + max(limit.windows * limit.window_s, paid_s)

    def _record(self, size_bytes: int, now_s: float) -> None:
        newest = self._samples[-1] if self._samples else None
        if newest is not None and now_s - newest.start_s < self._limit.window_s:
            newest.size_bytes += size_bytes
        else:
            self._samples.append(_Sample(now_s, size_bytes))
