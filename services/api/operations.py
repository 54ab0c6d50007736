"""Define what operators and tools record: anomalies, runs of tools, deleted objects."""

from dataclasses import dataclass, replace
from enum import Enum
from uuid import UUID

from services.api.calls import MAX_TEXT_LENGTH
from services.api.ids import ZERO_UUID
from services.api.validation import require, require_int32, require_int64

MAX_ANOMALIES = 1_000
"""The most anomalies of one report."""


MAX_DETAIL_LENGTH = 1_024


MAX_OBJECT_KEY_BYTES = 1_024
"""The most bytes of a key in UTF-8; a location's number and RSM's longest key need less."""


def require_object_key(key: str) -> None:
    """Refuse a key that is longer than any object's."""
    size_bytes, most = len(key.encode()), MAX_OBJECT_KEY_BYTES
    require(size_bytes <= most, "object_key", f"at most {most} bytes, has {size_bytes}")


class AnomalyKind(Enum):
    """The kind of difference between metadata and store; see the proto."""

    ORPHAN_OBJECTS = "ORPHAN_OBJECTS"
    UNREFERENCED_COMPLETE = "UNREFERENCED_COMPLETE"
    MISSING_OBJECTS = "MISSING_OBJECTS"
    CORRUPT_OBJECT = "CORRUPT_OBJECT"
    ABANDONED_UPLOAD = "ABANDONED_UPLOAD"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """The difference between metadata and store; all fields but `detail` identify it.

    The partition has no topic name here and may be unknown to RLMM: an orphan has only ids.

    Attributes:
        object_key: of the object, as in its ObjectLocation; "" for the segment as a whole.
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
        require_object_key(self.object_key)
        length, longest = len(self.detail), MAX_DETAIL_LENGTH
        require(length <= longest, "detail", f"at most {longest} characters, has {length}")

    @property
    def identity(self) -> "Anomaly":
        """Return the anomaly without its detail; RLMM treats equal identities as one anomaly."""
        return replace(self, detail="")


@dataclass(frozen=True, slots=True)
class SeenAnomaly:
    """The record of an anomaly in RLMM.

    Attributes:
        first_seen_ms, last_seen_ms: when a run found the anomaly, by the database's clock.
        times_seen: the number of runs that found it.
        run_id: the last run that found it.
    """

    anomaly: Anomaly
    first_seen_ms: int
    last_seen_ms: int
    times_seen: int
    run_id: str


@dataclass(frozen=True, slots=True)
class AnomalyQuery:
    """Select anomalies.

    Attributes:
        kinds: only of these; of any if empty.
        topic_id: only of this topic; of any if None.
        last_seen_from_ms: only those that were found at this time or later, by the database's
            clock; None for any time.
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
    """The anomalies on one page, in the order in which they were first found.

    Attributes:
        next_page_token: opaque; pass it with the same query for the next page. "" at the end.
    """

    anomalies: tuple[SeenAnomaly, ...]
    next_page_token: str


def check_run_id(run_id: str) -> None:
    """Raise InvalidRequestError if the run id is empty or too long."""
    length, most = len(run_id), MAX_TEXT_LENGTH
    require(1 <= length <= most, "run_id", f"must be 1 to {most} characters, has {length}")


MAX_PARTS = 10_000
"""The most parts of a verification."""


MAX_VERIFIED_TOPICS = 1_000
"""The most topics of one report of a verification."""


class VerificationKind(Enum):
    """How a run verifies: by comparing objects with metadata, or by reading all bytes."""

    RECONCILE = "RECONCILE"
    SCRUB = "SCRUB"


@dataclass(frozen=True, slots=True)
class VerificationRun:
    """A run that verified part `part`, from 1, of `parts` parts of each topic.

    Attributes:
        listed_at_ms: when the objects were listed, if long before the run's end; None for its end.
    """

    kind: VerificationKind
    run_id: str
    part: int = 1
    parts: int = 1
    listed_at_ms: int | None = None

    def __post_init__(self) -> None:
        check_run_id(self.run_id)
        require(1 <= self.parts <= MAX_PARTS, "parts", f"must be 1 to {MAX_PARTS}, is {self.parts}")
        require(1 <= self.part <= self.parts, "part", f"must be 1 to {self.parts}, is {self.part}")
        if self.listed_at_ms is not None:
            require_int64(self.listed_at_ms, "listed_at_ms")
            require(self.listed_at_ms >= 0, "listed_at_ms", "must not be before 1970")


@dataclass(frozen=True, slots=True)
class VerifiedTopic:
    """What was verified of a topic; see the proto."""

    topic_id: UUID
    segments: int = 0
    verified_segments: int = 0
    verified_bytes: int = 0
    failed_segments: int = 0

    def __post_init__(self) -> None:
        require(self.topic_id != ZERO_UUID, "topic_id", "must not be the zero id")
        for name in ("segments", "verified_segments", "verified_bytes", "failed_segments"):
            require_int64(getattr(self, name), name)


@dataclass(frozen=True, slots=True)
class Verification:
    """The last verification of a topic, the sum of its parts.

    Attributes:
        verified_parts: of `parts`.
        ended_ms, last_ended_ms: when the oldest and the latest of them ended, by the database's
            clock, or when their objects were listed if that was long before.
        run_id: of the latest.
    """

    topic: str
    kind: VerificationKind
    parts: int
    verified_parts: int
    ended_ms: int
    last_ended_ms: int
    run_id: str
    verified: VerifiedTopic


@dataclass(frozen=True, slots=True)
class VerificationPage:
    """The last verifications on one page, by topic id and kind; the token as in AnomalyPage."""

    verifications: tuple[Verification, ...]
    next_page_token: str


MAX_OBJECT_DELETIONS = 1_000
"""The most deletions of one record."""


@dataclass(frozen=True, slots=True)
class ObjectDeletion:
    """An object that is about to be deleted because no metadata needs it.

    Attributes:
        object_key: as in its ObjectLocation.
    """

    segment_id: UUID
    object_key: str

    def __post_init__(self) -> None:
        require(self.segment_id != ZERO_UUID, "segment_id", "must not be the zero id")
        require(self.object_key != "", "object_key", "must not be empty")
        require_object_key(self.object_key)


@dataclass(frozen=True, slots=True)
class DeletionFreeze:
    """A time in which no deletion of the whole tier begins, because its metadata is rebuilt.

    Attributes:
        since_ms: when it began, by the database's clock.
        actor: the caller that began it.
    """

    since_ms: int
    actor: str
    reason: str


class SweepKind(Enum):
    """What a sweep deletes: what retention no longer keeps, or marked partitions."""

    RETENTION = "RETENTION"
    REMOVAL = "REMOVAL"


class SweepOutcome(Enum):
    """How a sweep ended; PARTIAL: another run may do more; REFUSED: it would be refused as well."""

    DONE = "DONE"
    PARTIAL = "PARTIAL"
    REFUSED = "REFUSED"


MAX_SWEPT_TOPICS = 100


MAX_TOPIC_NAME_LENGTH = 249


@dataclass(frozen=True, slots=True)
class SweepRecord:
    """A sweep that has ended; see the proto.

    Attributes:
        topics: the names to which it was restricted; empty: all.
    """

    kind: SweepKind
    topics: tuple[str, ...]
    run_id: str
    outcome: SweepOutcome
    duration_ms: int = 0
    planned_segments: int = 0
    deleted_segments: int = 0
    deleted_bytes: int = 0
    failed_segments: int = 0

    def __post_init__(self) -> None:
        check_run_id(self.run_id)
        count = len(self.topics)
        require(
            count <= MAX_SWEPT_TOPICS, "topics", f"at most {MAX_SWEPT_TOPICS} names, has {count}"
        )
        for index, topic in enumerate(self.topics):
            is_name = 1 <= len(topic) <= MAX_TOPIC_NAME_LENGTH
            rule = f"must be 1 to {MAX_TOPIC_NAME_LENGTH} characters"
            require(is_name, f"topics[{index}]", rule)
        numbers = ("duration_ms", "planned_segments", "deleted_segments", "deleted_bytes")
        for name in (*numbers, "failed_segments"):
            require_int64(getattr(self, name), name)


@dataclass(frozen=True, slots=True)
class RecordedSweep:
    """The last sweep of a kind and topics; ended_ms is by the database's clock."""

    record: SweepRecord
    ended_ms: int
