"""A partition's state besides its segments: deletion, leader's report, recorded gaps, audit."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from uuid import UUID

from services.api.calls import MAX_TEXT_LENGTH
from services.api.ids import ZERO_UUID, TopicIdPartition
from services.api.lineage import Lineage
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.validation import require, require_int32, require_int64

LOST_BEFORE_COPY = "LOST_BEFORE_COPY"
"""The broker deleted them before they were copied."""

GAP_KINDS = (LOST_BEFORE_COPY,)

MAX_GAPS = 1_000
"""Gaps kept of a partition: those of the greatest offsets."""


@dataclass(frozen=True, slots=True)
class OffsetGap:
    """A range of offsets, both ends inclusive.

    Attributes:
        kind: why; one of GAP_KINDS where it is to be recorded, perhaps another one of a later
            release where it was read.
    """

    start_offset: int
    end_offset: int
    kind: str = LOST_BEFORE_COPY

    def __post_init__(self) -> None:
        require_int64(self.start_offset, "start_offset")
        require_int64(self.end_offset, "end_offset")
        in_order = self.start_offset <= self.end_offset
        require(in_order, "end_offset", f"must not be below start_offset {self.start_offset}")


def is_recorded(gaps: Sequence[OffsetGap], start_offset: int, end_offset: int) -> bool:
    """Return whether a range, both ends inclusive, lies within one of the recorded gaps.

    Args:
        gaps: all that are kept of a partition, ascending. Where they are MAX_GAPS, what lies below
            the first of them counts as recorded: it may have been, and is not kept any more.
    """
    if len(gaps) >= MAX_GAPS and end_offset + 1 < gaps[0].start_offset:
        return True
    return any(gap.start_offset <= start_offset and end_offset <= gap.end_offset for gap in gaps)


NOTHING_COPIED = -1


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """A report of the RLM of a partition's leader. Reports are ordered by (leader_epoch,
    report_number).

    Attributes:
        leader_epoch: of the broker, under which it leads the partition.
        report_number: larger than that of every earlier report of the same leader epoch.
        lineage: the broker's leader epochs, with those that it forgot together with their records
            where the tier knows them; none above leader_epoch.
        local_log_start_offset: the first offset on the broker's disk.
        log_end_offset: the offset that the next record will get.
        high_watermark, last_stable_offset: as the broker has them; exclusive.
        only_local_bytes: of the segments that begin above copied_through_offset, the active one
            among them (Kafka: onlyLocalLogSegmentsSize).
        copied_through_offset: the last offset in the tier when this was counted, inclusive;
            NOTHING_COPIED.
    """

    topic_id_partition: TopicIdPartition
    broker_id: int
    leader_epoch: int
    report_number: int
    lineage: Lineage
    local_log_start_offset: int
    log_end_offset: int
    high_watermark: int
    last_stable_offset: int
    only_local_bytes: int
    copied_through_offset: int

    def __post_init__(self) -> None:
        require_int32(self.broker_id, "broker_id", at_least=-1)
        require_int32(self.leader_epoch, "leader_epoch")
        require_int64(self.report_number, "report_number")
        require_int64(self.local_log_start_offset, "local_log_start_offset")
        require_int64(self.log_end_offset, "log_end_offset")
        require_int64(self.only_local_bytes, "only_local_bytes")
        require_int64(self.copied_through_offset, "copied_through_offset", at_least=NOTHING_COPIED)
        latest = self.lineage.latest_epoch
        led = latest is None or latest <= self.leader_epoch
        require(led, "leader_epochs", f"has {latest}, above leader_epoch {self.leader_epoch}")
        for name in ("high_watermark", "last_stable_offset"):
            value = getattr(self, name)
            require_int64(value, name)
            fits = value <= self.log_end_offset
            require(fits, name, f"must not be above log_end_offset {self.log_end_offset}")


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition's state as RLMM keeps it.

    Attributes:
        log_start_offset: the tier's: what lies below is gone or going. Never falls.
        lineage: the tier's, from log_start_offset on: each report's, joined to what was known
            (Lineage.merged_with_report). Empty: nobody has reported.
        report: the latest one; None: nobody has reported.
        reported_at_ms: when it came, by the database's clock.
        read_at_ms: now, by the database's clock.
        gaps: recorded (record_gap), at or above log_start_offset; ascending, the last MAX_GAPS.
            None in the answer to a report.
        highest_broker_leader_epoch: callers of a lower one are fenced; None: none is known.
    """

    log_start_offset: int = 0
    lineage: Lineage = field(default_factory=Lineage)
    report: PartitionReport | None = None
    reported_at_ms: int | None = None
    read_at_ms: int = 0
    gaps: tuple[OffsetGap, ...] = ()
    highest_broker_leader_epoch: int | None = None

    @property
    def report_age_ms(self) -> int | None:
        """Return the age of the report; None: there is none."""
        return None if self.reported_at_ms is None else self.read_at_ms - self.reported_at_ms


def log_end_offset(
    segments: Iterable[RemoteLogSegmentMetadata], lineage: Lineage, report: PartitionReport
) -> int:
    """Return the leader's log end offset, also if it copied more after its report.

    Under one leader epoch a log only grows. So what has finished, and ends in the epoch of the
    leader that reported, is that leader's, though it was not written yet when it reported. What
    ends in an earlier epoch at or above the reported end was truncated in an unclean election.
    """
    if lineage.latest_epoch != report.leader_epoch:
        return report.log_end_offset
    ends = (
        segment.end_offset + 1
        for segment in segments
        if segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        and segment.segment_leader_epochs[-1].leader_epoch == report.leader_epoch
    )
    return max(report.log_end_offset, max(ends, default=0))


class RemotePartitionDeleteState(Enum):
    """Kafka: RemotePartitionDeleteState. Each state follows the one above it, none other."""

    DELETE_PARTITION_MARKED = "DELETE_PARTITION_MARKED"
    DELETE_PARTITION_STARTED = "DELETE_PARTITION_STARTED"
    DELETE_PARTITION_FINISHED = "DELETE_PARTITION_FINISHED"


_ORDER = tuple(RemotePartitionDeleteState)


def delete_predecessor(target: RemotePartitionDeleteState) -> RemotePartitionDeleteState | None:
    """Return the state from which a partition may move to `target`; None: not being deleted.

    Source: RemotePartitionDeleteState.isValidTransition, which Kafka's own store does not
    enforce and ours does (a declared difference).
    """
    place = _ORDER.index(target)
    return _ORDER[place - 1] if place else None


@dataclass(frozen=True, slots=True)
class RemotePartitionDeleteMetadata:
    """One event of a partition's deletion (Kafka: RemotePartitionDeleteMetadata)."""

    topic_id_partition: TopicIdPartition
    state: RemotePartitionDeleteState
    event_timestamp_ms: int
    broker_id: int

    def __post_init__(self) -> None:
        require_int64(self.event_timestamp_ms, "event_timestamp_ms")
        require_int32(self.broker_id, "broker_id", at_least=-1)


@dataclass(frozen=True, slots=True)
class PartitionEvent:
    """One change of a partition.

    Attributes:
        revision: that it gave the partition.
        at_ms: when, by the database's clock.
        kind: what changed: LEADERSHIP, SEGMENT, PARTITION_DELETE, LINEAGE, LOG_START, GAP,
            LEADER_EPOCH_RESET; more may follow.
        from_state: of the segment or of the partition's deletion before; "": none.
        to_state: the same, after the change.
        segment_id: None: not of a segment.
        key: topicId:partition:endOffset:brokerLeaderEpoch of the segment, -1 where no epoch is
            known (the compaction proposal's key); "": not of a segment.
        actor: who made the call.
        call_id: of the one call, as in the logs.
        request_id: of the call's context, as are reason, rule_detail and plan_id; "": not said.
        broker_id: -1: no broker.
        broker_leader_epoch: under which it was made; None: not said.
        repeat_count: further calls that asked for what this one had done.
    """

    revision: int
    at_ms: int
    kind: str
    from_state: str = ""
    to_state: str = ""
    segment_id: UUID | None = None
    key: str = ""
    actor: str = ""
    call_id: str = ""
    request_id: str = ""
    reason: str = ""
    rule_detail: str = ""
    plan_id: str = ""
    broker_id: int = -1
    broker_leader_epoch: int | None = None
    repeat_count: int = 0


@dataclass(frozen=True, slots=True)
class EventQuery:
    """Select events of a partition.

    Attributes:
        after_revision: only those after it; 0: from the oldest one on.
        segment_id: only of this segment; None: of all, and of none.
        plan_id: only of this sweep; "": of any and of none.
    """

    topic_id_partition: TopicIdPartition
    after_revision: int = 0
    segment_id: UUID | None = None
    plan_id: str = ""

    def __post_init__(self) -> None:
        require_int64(self.after_revision, "after_revision")
        require(
            len(self.plan_id) <= MAX_TEXT_LENGTH, "plan_id", f"over {MAX_TEXT_LENGTH} characters"
        )


@dataclass(frozen=True, slots=True)
class EventPage:
    """Some of a partition's events, ascending by revision.

    Attributes:
        next_page_token: opaque; pass it with the same query for the next page. "": the end.
        revision: of the partition when this page was read.
    """

    events: tuple[PartitionEvent, ...]
    next_page_token: str
    revision: int


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
