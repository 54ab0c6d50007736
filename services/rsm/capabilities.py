"""What RSM needs of a store, and a report of what a store was found to do."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Capability(StrEnum):
    """Something that a store can do."""

    READ_AFTER_WRITE = "read_after_write"
    LISTING = "listing"
    RANGES = "ranges"
    RANGE_PAST_THE_END = "range_past_the_end"
    MULTIPART = "multipart"
    UPLOAD_LISTING = "upload_listing"
    MULTI_DELETE = "multi_delete"
    IF_NONE_MATCH = "if_none_match"
    CHECKSUMS = "checksums"
    ETAGS = "etags"
    UNSIGNED_PAYLOAD = "unsigned_payload"


REQUIRED = frozenset(
    {
        Capability.READ_AFTER_WRITE,
        # A copy that failed could never be cleaned up: nothing else knows what it left.
        Capability.LISTING,
        Capability.RANGES,
        Capability.MULTIPART,
        # The same, of the parts that it left.
        Capability.UPLOAD_LISTING,
        Capability.MULTI_DELETE,
    }
)
"""Without one of these segments could not be kept, read or deleted."""

REQUIRED_OF_FILES = REQUIRED | {Capability.IF_NONE_MATCH}
"""The same of a file system, where a hard link makes an object that must be the only one: nothing
stands in for it, and no copy would ever count."""

WITHOUT = {
    Capability.RANGE_PAST_THE_END: "an object that lost its end is found out later",
    Capability.IF_NONE_MATCH: "of two copies of one segment at the same moment the last one counts",
    Capability.CHECKSUMS: "bytes that change on their way into the store are found when they are "
    "read",
    Capability.ETAGS: "an object cannot be told from a later one under its key",
}
"""What to expect of a store that lacks one of these. Unsigned payloads are nowhere: a store that
RSM sends them to and that refuses them fails READ_AFTER_WRITE."""


class Outcome(StrEnum):
    """How a store did."""

    OK = "ok"
    MISSING = "missing"
    """It refuses the request, or ignores what it asks for."""
    WRONG = "wrong"
    """It does something else."""


class ShortcomingError(Exception):
    """A store failed a step of a probe; never leaves the probe."""

    def __init__(self, outcome: Outcome, detail: str) -> None:
        super().__init__(detail)
        self.outcome = outcome


Step = Callable[[], None]
"""Tries one capability; raises ShortcomingError, or an error of the store as a StorageBackend."""


@dataclass(frozen=True, slots=True)
class Finding:
    """How a store did at one thing; `detail` says what was wrong, empty where nothing was."""

    capability: Capability
    outcome: Outcome
    took_ms: float
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.capability} is {self.outcome} ({self.detail})"


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """How a store did at everything; `required` is what RSM cannot do without."""

    location_id: int
    place: str
    findings: tuple[Finding, ...]
    required: frozenset[Capability] = REQUIRED

    @property
    def refused(self) -> tuple[Finding, ...]:
        """What keeps RSM from using the store."""
        return tuple(f for f in self._shortcomings() if f.capability in self.required)

    @property
    def degraded(self) -> tuple[Finding, ...]:
        """What RSM does without."""
        degraded = WITHOUT.keys() - self.required
        return tuple(f for f in self._shortcomings() if f.capability in degraded)

    def as_json(self) -> dict[str, Any]:
        return {
            "location_id": self.location_id,
            "place": self.place,
            "usable": not self.refused,
            "capabilities": {
                finding.capability.value: {
                    "outcome": finding.outcome.value,
                    "took_ms": round(finding.took_ms, 1),
                    "required": finding.capability in self.required,
                    "detail": finding.detail,
                }
                for finding in self.findings
            },
        }

    def _shortcomings(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.outcome is not Outcome.OK)
