"""Define the checks of `sediment doctor` and their findings."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import IntEnum

from services.api.errors import RemoteStorageError
from services.cli.output import CommandError
from services.common.reloaded_file import FileError
from services.rlm.kafka_admin.cluster_view import ClusterUnreachableError
from services.rlm.kafka_log.partition_dir import LogDirError
from services.views.documents import Json, fields_as_json
from services.views.tier import Line

CLOCK_WARN_MS = 5_000
CLOCK_FAIL_MS = 300_000
ERRORS = (
    RemoteStorageError,
    CommandError,
    FileError,
    LogDirError,
    ClusterUnreachableError,
    SystemExit,
)
"""How a check fails by what it checks; any other exception is a defect of ours."""

_CAUSES = {
    "rsm": ("bucket",),
    "rlmm": ("database",),
    "services": ("database",),
    "upkeep": ("database", "services", "rlmm"),
    "kept state": ("store", "services", "rsm"),
    "brokers": ("database", "services", "rlmm", "rlm"),
    "readers": ("database", "services", "rlmm", "rlm"),
    "local retention": ("database", "services", "rlmm", "rlm"),
}
"""Maps a check to those whose failure explains that it got no answer."""


class Level(IntEnum):
    """How bad a finding is. SKIP: it was not checked; its text has the reason."""

    SKIP = -1
    OK = 0
    WARN = 1
    FAIL = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found.

    Attributes:
        next: the command or step that helps; "" if nothing is to be done.
        is_no_answer: another check's failure may explain it.
    """

    check: str
    level: Level
    text: str
    next: str = ""
    is_no_answer: bool = False

    def as_json(self) -> Json:
        return fields_as_json(self, "check", "text", "next") | {"level": self.level.name}

    @property
    def causes(self) -> tuple[str, ...]:
        return _CAUSES.get(self.check, ()) if self.is_no_answer else ()

    def judged(self, failed: Collection[str]) -> "Finding":
        """Return the finding, as skipped if the failure of another check explains it."""
        cause = next((each for each in self.causes if each in failed), None)
        if cause is None:
            return self
        return Finding(self.check, Level.SKIP, f"because of {cause}: {self.text}")


@dataclass(frozen=True, slots=True)
class Check:
    """A check of `sediment doctor`.

    Attributes:
        run: yields the findings; any of ERRORS that it raises is a finding, too.
        next: what helps if it raises.
    """

    name: str
    run: Callable[[], Iterator[Finding]]
    next: str = "check the address, the network, TLS and grants"

    def findings(self) -> Iterator[Finding]:
        try:
            yield from self.run()
        except ERRORS as e:
            yield Finding(self.name, Level.FAIL, str(e), self.next, is_no_answer=True)


def finding_of(check: str, line: Line) -> Finding:
    """Return the finding that a line of `sediment status` is."""
    return Finding(check, Level(line.severity), line.text, line.next)


_LEVELS = {"WARNING": Level.WARN, "CRITICAL": Level.FAIL, "UNKNOWN": Level.SKIP}


def store_findings(check: str, notes: Collection[tuple[str, str]]) -> Iterator[Finding]:
    """Judge what a store does by itself; `notes` have a level and a text each."""
    sound = [text for level, text in notes if level == "OK"]
    next_step = "see docs/run/object-locations.md#the-buckets-rules"
    for level, text in notes:
        if level in _LEVELS:
            yield Finding(check, _LEVELS[level], text, next_step)
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
    text = f"{whose}: {off_ms / 1000:,.0f} s {side} this machine's"
    next_step = "run `timedatectl` on both, and let NTP set the one that is wrong"
    return Finding(check, level, text, next_step)
