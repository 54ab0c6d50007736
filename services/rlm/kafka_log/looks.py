"""What tells, without reading it, whether a file or a folder has changed."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

_GRANULARITY_NS = 100_000_000


@dataclass(frozen=True, slots=True)
class Looks:
    """
    Attributes:
        ctime_ns: moves with contents, rights and owner; nobody can set it back.
    """

    inode: int
    ctime_ns: int


def looks_of(path: Path) -> Looks | None:
    """To be asked before it is read; None: that does not tell whether it changes, or it cannot be
    looked at."""
    try:
        told = os.stat(path)
    except OSError:
        return None
    if not is_settled(told.st_ctime_ns):
        return None
    return Looks(told.st_ino, told.st_ctime_ns)


def is_settled(changed_ns: int) -> bool:
    """Whether another change would show in the time: not within the clock's granularity."""
    return time.time_ns() - changed_ns > _GRANULARITY_NS
