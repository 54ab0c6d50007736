"""Say what a check of `sediment doctor` is, and what it finds."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

CLOCK_WARN_MS = 5_000
CLOCK_FAIL_MS = 300_000


class Level(IntEnum):
    """How bad a finding is. SKIP: it was not checked, and the finding says why."""

    SKIP = -1
    OK = 0
    WARN = 1
    FAIL = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found.

    Attributes:
        next: the command or step that helps; "" if nothing is to be done.
    """

    check: str
    level: Level
    text: str
    next: str = ""

    def as_json(self) -> dict[str, str]:
        return {
            "check": self.check,
            "level": self.level.name,
            "text": self.text,
            "next": self.next,
        }


Check: TypeAlias = Callable[[], Iterator[Finding]]
"""Yields what it finds. It may raise RemoteStorageError or CommandError: then it failed."""

_LEVELS = {"WARNING": Level.WARN, "CRITICAL": Level.FAIL, "UNKNOWN": Level.SKIP}


def store_findings(check: str, notes: Collection[tuple[str, str]]) -> Iterator[Finding]:
    """Judge what a store does by itself; `notes` have a level and a text each."""
    sound = [text for level, text in notes if level == "OK"]
    for level, text in notes:
        if level in _LEVELS:
            yield Finding(
                check, _LEVELS[level], text, "see docs/run/object-locations.md#the-buckets-rules"
            )
    if sound:
        yield Finding(check, Level.OK, "; ".join(sound))


def clock_finding(check: str, whose: str, ahead_ms: int, error_ms: int) -> Finding:
    """Judge a clock by this machine's.

    S3 refuses requests of a clock that is a quarter of an hour off, and a token that ended 10 s
    ago is refused.

    Args:
        error_ms: how wrong `ahead_ms` may be, either way.
    """
    off_ms = max(abs(ahead_ms) - error_ms, 0)
    if off_ms <= CLOCK_WARN_MS:
        return Finding(check, Level.OK, f"{whose}: agrees with this machine's")
    level = Level.WARN if off_ms <= CLOCK_FAIL_MS else Level.FAIL
    side = "ahead of" if ahead_ms > 0 else "behind"
    return Finding(
        check,
        level,
        f"{whose}: {off_ms / 1000:,.0f} s {side} this machine's",
        "run `timedatectl` on both, and let NTP set the one that is wrong",
    )
