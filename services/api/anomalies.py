"""Differences between metadata and bucket, as reconciliation reports them."""

from dataclasses import dataclass, replace
from enum import Enum
from uuid import UUID

from services.api.calls import MAX_TEXT_LENGTH
from services.api.ids import ZERO_UUID
from services.api.validation import require, require_int32, require_int64

MAX_ANOMALIES = 1_000
"""Of one report."""

MAX_DETAIL_LENGTH = 1_024

MAX_OBJECT_KEY_BYTES = 1_024
"""In UTF-8: more than a location's number and RSM's longest key have."""


class AnomalyKind(Enum):
    """How metadata and bucket disagree; see the proto."""

    ORPHAN_OBJECTS = "ORPHAN_OBJECTS"
    UNREFERENCED_COMPLETE = "UNREFERENCED_COMPLETE"
    MISSING_OBJECTS = "MISSING_OBJECTS"
    CORRUPT_OBJECT = "CORRUPT_OBJECT"
    ABANDONED_UPLOAD = "ABANDONED_UPLOAD"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A disagreement; all its fields but `detail` identify it.

    RLMM need not know the partition, which has no topic name here: an orphan has only ids.

    Attributes:
        object_key: of the object, as in its ObjectLocation; "": of the segment as a whole.
        detail: a text for people.
    """

    kind: AnomalyKind
    topic_id: UUID
    partition: int
    segment_id: UUID
    object_key: str = ""
    detail: str = ""

    def __post_init__(self) -> None:
        require(self.topic_id != ZERO_UUID, "topic_id", "must not be the zero id")
        require_int32(self.partition, "partition")
        require(self.segment_id != ZERO_UUID, "segment_id", "must not be the zero id")
        size_bytes, most = len(self.object_key.encode()), MAX_OBJECT_KEY_BYTES
        require(size_bytes <= most, "object_key", f"at most {most} bytes, has {size_bytes}")
        length, longest = len(self.detail), MAX_DETAIL_LENGTH
        require(length <= longest, "detail", f"at most {longest} characters, has {length}")

    @property
    def identity(self) -> "Anomaly":
        """The anomaly without its detail, equal for what RLMM counts as the same anomaly."""
        return replace(self, detail="")


@dataclass(frozen=True, slots=True)
class SeenAnomaly:
    """A stored anomaly.

    Attributes:
        first_seen_ms, last_seen_ms: when a run saw it, by the database's clock.
        times_seen: by how many runs.
        run_id: the last run that saw it.
    """

    anomaly: Anomaly
    first_seen_ms: int
    last_seen_ms: int
    times_seen: int
    run_id: str


@dataclass(frozen=True, slots=True)
class AnomalyQuery:
    """Which anomalies.

    Attributes:
        kinds: only of these; empty: of any.
        topic_id: only of this topic; None: of any.
        last_seen_from_ms: only those that were seen then or later, by the database's clock.
    """

    kinds: tuple[AnomalyKind, ...] = ()
    topic_id: UUID | None = None
    last_seen_from_ms: int | None = None

    def __post_init__(self) -> None:
        if self.last_seen_from_ms is not None:
            require_int64(self.last_seen_from_ms, "last_seen_from_ms")


ALL_ANOMALIES = AnomalyQuery()


@dataclass(frozen=True, slots=True)
class AnomalyPage:
    """Some anomalies, the ones first seen first.

    Attributes:
        next_page_token: opaque; pass it with the same query for the next page. "": the end.
    """

    anomalies: tuple[SeenAnomaly, ...]
    next_page_token: str


def check_run_id(run_id: str) -> None:
    """Raise InvalidRequestError if the run id is empty or too long."""
    length, most = len(run_id), MAX_TEXT_LENGTH
    require(1 <= length <= most, "run_id", f"must be 1 to {most} characters, has {length}")
