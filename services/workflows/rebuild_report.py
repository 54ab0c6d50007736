"""Describe how bucket and metadata differ, and what a rebuild did about it."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from uuid import UUID

from services.api.holds import Hold


class DifferenceKind(StrEnum):
    """A difference between bucket and metadata, and what a rebuild does about it."""

    ONLY_IN_BUCKET = "ONLY_IN_BUCKET"
    """A complete copy without metadata: it is imported."""
    NOT_FINISHED = "NOT_FINISHED"
    """A complete copy in COPY_SEGMENT_STARTED that no process copies now: it is finished."""
    SUPERSEDED = "SUPERSEDED"
    """A complete copy whose offsets a better copy has: it is left out."""
    DELETED = "DELETED"
    """A complete copy whose deletion finished according to the metadata: it is left out."""
    ONLY_IN_METADATA = "ONLY_IN_METADATA"
    """A finished segment whose objects are not there: its metadata stays."""
    DAMAGED = "DAMAGED"
    """A copy whose manifest or objects are not as they were written: it is left out."""
    REFUSED = "REFUSED"
    """A copy that RLMM does not accept, or whose manifest the store does not return."""


NEEDS_OPERATOR = (
    DifferenceKind.ONLY_IN_METADATA,
    DifferenceKind.DAMAGED,
    DifferenceKind.REFUSED,
)


@dataclass(frozen=True, slots=True)
class Difference:
    """A segment of which bucket and metadata differ.

    Attributes:
        topic: "" if neither RLMM nor a manifest names it.
        end_offset: None if only the object's key is known.
    """

    kind: DifferenceKind
    topic_id: UUID
    topic: str
    partition: int
    segment_id: UUID
    start_offset: int
    end_offset: int | None
    detail: str = ""


@dataclass(slots=True)
class Rebuilt:
    """The differences and changes of a run.

    Attributes:
        freeze: the hold on all deletions, set before the first change; None in a dry run.
        same: complete copies that RLMM has, in any state but a finished deletion.
        incomplete: segments with objects but no manifest.
        differences: at most MAX_DIFFERENCES of them; `counts` has all.
    """

    freeze: Hold | None = None
    segments: int = 0
    same: int = 0
    incomplete: int = 0
    imported: int = 0
    finished: int = 0
    counts: Counter[DifferenceKind] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)

    MAX_DIFFERENCES = 10_000

    def record(self, difference: Difference) -> None:
        self.counts[difference.kind] += 1
        if len(self.differences) < self.MAX_DIFFERENCES:
            self.differences.append(difference)

    def add(self, other: "Rebuilt") -> None:
        """Add the differences and changes of another part of the same run."""
        self.segments += other.segments
        self.same += other.same
        self.incomplete += other.incomplete
        self.imported += other.imported
        self.finished += other.finished
        self.counts += other.counts
        room = self.MAX_DIFFERENCES - len(self.differences)
        self.differences += other.differences[:room]

    @property
    def needs_operator(self) -> bool:
        return any(self.counts[kind] for kind in NEEDS_OPERATOR)
