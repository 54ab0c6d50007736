"""Reserve the bytes of the next segment in the copy quota."""

from collections.abc import Callable
from dataclasses import dataclass

from services.common.fair_queue import TokenBucket
from services.rlm.metrics import COPY_THROTTLE_SECONDS


@dataclass(frozen=True, slots=True)
class _Reservation:
    size_bytes: int
    reserved_s: float
    due_s: float


class QuotaTurn:
    """The turn of a partition's next segment in the copy quota. Not thread-safe.

    The bytes are reserved at once, so that segments are copied in the order of their requests. No
    thread waits: the pass ends and runs again when the bytes may be copied.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, quota: TokenBucket, clock: Callable[[], float]) -> None:
        self._quota = quota
        self._clock = clock
        self._reservation: _Reservation | None = None

    def wait_s(self, size_bytes: int) -> float:
        """Return the seconds until the quota allows the segment; 0 if it does now."""
        now_s = self._clock()
        if self._reservation is None:
            wait_s = self._quota.try_spend(size_bytes)
            if wait_s:
                self._quota.spend_at_once(size_bytes)
            self._reservation = _Reservation(size_bytes, now_s, now_s + wait_s)
        return max(self._reservation.due_s - now_s, 0.0)

    def end(self) -> None:
        """End the turn, because the segment is copied now."""
        turn, self._reservation = self._reservation, None
        if turn is not None and turn.due_s > turn.reserved_s:
            COPY_THROTTLE_SECONDS.observe(self._clock() - turn.reserved_s)

    def cancel(self) -> None:
        """End the turn without a copy and return its bytes to the quota."""
        if self._reservation is not None:
            self._quota.spend_at_once(-self._reservation.size_bytes)
            self.end()
