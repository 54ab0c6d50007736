"""Scrub: what a run is to look at, how fast, and what it found."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from services.api.anomalies import AnomalyKind
from services.api.segment_objects import CURRENT_LOCATION, shard_of
from services.api.stored_segments import StoredSegment
from services.api.validation import require

MAX_PARTS = 10_000
SHARDS = 64
"""Of a location's listing: one that breaks off costs what is left of its shard."""


@dataclass(frozen=True, slots=True)
class ScrubPlan:
    """
    Attributes:
        run_id: names the run in RLMM's anomalies.
        part: the one of `parts` that is looked at, from 1 on. A segment is in the same each time,
            whatever else there is; those of any partition are spread over all.
        topic_ids: only of these topics; None: of all.
        locations: those whose objects are looked at.
    """

    run_id: str
    part: int = 1
    parts: int = 1
    topic_ids: frozenset[UUID] | None = None
    locations: Sequence[int] = (CURRENT_LOCATION,)

    def __post_init__(self) -> None:
        require(1 <= self.parts <= MAX_PARTS, "parts", f"must be 1 to {MAX_PARTS}")
        require(1 <= self.part <= self.parts, "part", f"must be 1 to {self.parts}")

    def has(self, stored: StoredSegment) -> bool:
        topic_id, _ = stored.partition
        is_wanted = self.topic_ids is None or topic_id in self.topic_ids
        return is_wanted and stored.id.int % self.parts == self.part - 1

    def shards(self) -> list[int]:
        """Those of SHARDS that may have what is to be looked at."""
        if self.topic_ids is None:
            return list(range(SHARDS))
        return sorted({shard_of(topic_id, SHARDS) for topic_id in self.topic_ids})


@dataclass(slots=True)
class Scrubbed:
    """What a run found.

    Attributes:
        segments: finished ones that it looked at: each was verified, damaged, unchecked or gone.
        damaged: of which at least one anomaly was told.
        unchecked: of which nobody knows; `reasons` has why.
        gone: deleted meanwhile.
        unlisted: listings that broke off: what they would have had was not looked at.
        anomalies: by kind.
        read_bytes: what was asked for, with what was read again.
        reasons: for people, a line each, at most MAX_REASONS.
        is_cut_short: the store was away for so long that the run ended.
    """

    segments: int = 0
    verified: int = 0
    damaged: int = 0
    unchecked: int = 0
    gone: int = 0
    unlisted: int = 0
    anomalies: Counter[AnomalyKind] = field(default_factory=Counter)
    read_bytes: int = 0
    reasons: list[str] = field(default_factory=list)
    is_cut_short: bool = False

    MAX_REASONS = 100

    @property
    def is_complete(self) -> bool:
        """Whether all that was to be looked at was."""
        return not (self.unchecked or self.unlisted or self.is_cut_short)


@dataclass(frozen=True, slots=True)
class Pace:
    """
    Attributes:
        take: take(size_bytes) returns when so many bytes may be read.
        pause: pause(seconds), after a failure.
    """

    take: Callable[[int], None]
    pause: Callable[[float], object]
