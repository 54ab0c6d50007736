"""Whether a file's time tells of every change of it."""

import time

_MTIME_GRANULARITY_NS = 100_000_000


def is_settled(mtime_ns: int) -> bool:
    """Whether another change would show in the time: not within the clock's granularity."""
    return time.time_ns() - mtime_ns > _MTIME_GRANULARITY_NS
