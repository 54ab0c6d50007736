"""Define what operators and tools record: anomalies, runs of tools, deleted objects."""

from dataclasses import dataclass, replace
from enum import Enum
from uuid import UUID

from services.api.calls import MAX_TEXT_LENGTH
from services.api.ids import ZERO_UUID
from services.api.validation import require, require_between, require_int32, require_int64

MAX_ANOMALIES = 1_000
"""The most anomalies of one report."""
MAX_DETAIL_LENGTH = 1_024
MAX_OBJECT_KEY_BYTES = 1_024
"""The most bytes of a key in UTF-8; a location's number and RSM's longest key need less."""
MAX_OBJECT_DELETIONS = 1_000
"""The most deletions of one record."""
MAX_PARTS = 10_000
"""The most parts of a check."""
MAX_RUN_COUNTS = 1_000
"""The most counts of one report of a run."""
MAX_RUN_TOPICS = 100
MAX_TOPIC_NAME_LENGTH = 249


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
class RecordedAnomaly:
    """The record of an anomaly in RLMM.

    Attributes:
        first_seen_ms, last_seen_ms: when a run found the anomaly, by the database's clock.
        times_seen: the number of runs that found it.
        run_id: the last run that reported it.
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

    anomalies: tuple[RecordedAnomaly, ...]
    next_page_token: str


def check_run_id(run_id: str) -> None:
    """Raise InvalidRequestError if the run id is empty or too long."""
    length, most = len(run_id), MAX_TEXT_LENGTH
    require(1 <= length <= most, "run_id", f"must be 1 to {most} characters, has {length}")


class RunKind(Enum):
    """What a tool did: deleted segments, verified them, or maintained the database.

    RETENTION deletes what retention no longer keeps, REMOVAL marked partitions. RECONCILE compares
    objects with metadata, SCRUB reads all bytes. MAINTENANCE purges old rows. COPY copies segments
    from one location to another. REWRAP wraps data keys under another key.
    """

    RETENTION = "RETENTION"
    REMOVAL = "REMOVAL"
    RECONCILE = "RECONCILE"
    SCRUB = "SCRUB"
    MAINTENANCE = "MAINTENANCE"
    COPY = "COPY"
    REWRAP = "REWRAP"


SWEEPS = (RunKind.RETENTION, RunKind.REMOVAL)
CHECKS = (RunKind.RECONCILE, RunKind.SCRUB)


class RunOutcome(Enum):
    """How a run ended; PARTIAL: another run may do more; REFUSED: it would be refused as well."""

    DONE = "DONE"
    PARTIAL = "PARTIAL"
    REFUSED = "REFUSED"


@dataclass(frozen=True, slots=True)
class ToolRun:
    """A run of a sweep or a check that has ended; see the proto.

    Attributes:
        topics: the names to which it was restricted; empty: all.
        part: the part of each topic that it read, from 1, of `parts` parts.
        duration_ms: its duration; 0 if unknown.
        listed_at_ms: when the objects were listed, if long before the run's end; None for its end.
    """

    kind: RunKind
    run_id: str
    outcome: RunOutcome = RunOutcome.DONE
    topics: tuple[str, ...] = ()
    part: int = 1
    parts: int = 1
    duration_ms: int = 0
    listed_at_ms: int | None = None

    def __post_init__(self) -> None:
        check_run_id(self.run_id)
        count, most = len(self.topics), MAX_RUN_TOPICS
        require(count <= most, "topics", f"at most {most} names, has {count}")
        for index, topic in enumerate(self.topics):
            is_name = 1 <= len(topic) <= MAX_TOPIC_NAME_LENGTH
            rule = f"must be 1 to {MAX_TOPIC_NAME_LENGTH} characters"
            require(is_name, f"topics[{index}]", rule)
        require_between(self.parts, "parts", 1, MAX_PARTS)
        require_between(self.part, "part", 1, self.parts)
        require_int64(self.duration_ms, "duration_ms")
        if self.listed_at_ms is not None:
            require_int64(self.listed_at_ms, "listed_at_ms")
            require(self.listed_at_ms >= 0, "listed_at_ms", "must not be before 1970")


@dataclass(frozen=True, slots=True)
class RunCounts:
    """What a run did with the segments of a topic, or of all its topics; see the proto.

    Attributes:
        topic_id: None for all topics of the run together.
        segments: that the run planned to delete, or read.
        done_segments: of these, deleted or sound; the logs have done_bytes together.
        failed_segments: of these, not deleted, or damaged.
    """

    topic_id: UUID | None = None
    segments: int = 0
    done_segments: int = 0
    done_bytes: int = 0
    failed_segments: int = 0

    def __post_init__(self) -> None:
        require(self.topic_id != ZERO_UUID, "topic_id", "must not be the zero id")
        for name in ("segments", "done_segments", "done_bytes", "failed_segments"):
            require_int64(getattr(self, name), name)


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The last run of a kind over a topic, or over the topics of a run: the sum of its parts.

    Attributes:
        topics: the name of the topic of `counts`; without one, as the run's.
        ended_parts: of `parts`.
        ended_ms, last_ended_ms: when the oldest and the latest of them ended, by the database's
            clock, or when their objects were listed if that was long before.
        run_id, outcome: of the latest.
    """

    kind: RunKind
    run_id: str
    outcome: RunOutcome
    topics: tuple[str, ...]
    parts: int
    ended_parts: int
    ended_ms: int
    last_ended_ms: int
    duration_ms: int
    counts: RunCounts


@dataclass(frozen=True, slots=True)
class RunPage:
    """The last runs on one page; the token as in AnomalyPage."""

    runs: tuple[RecordedRun, ...]
    next_page_token: str


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
