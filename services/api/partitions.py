"""Define a partition's state: deletion, report, gaps, events, anomalies."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from services.api.calls import MAX_TEXT_LENGTH
from services.api.holds import Hold
from services.api.ids import TopicIdPartition
from services.api.lineage import Lineage
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState, saved_bytes_of
from services.api.validation import require, require_int32, require_int64

LOST_BEFORE_COPY = "LOST_BEFORE_COPY"
"""The kind of a gap whose offsets the broker deleted before their copy."""

DELETED_AT_BROKER = "DELETED_AT_BROKER"
"""The kind of a gap whose offsets were deleted on request at the broker before their copy."""

GAP_KINDS = (LOST_BEFORE_COPY, DELETED_AT_BROKER)

MAX_GAPS = 1_000
"""The most gaps that are stored of a partition: those with the greatest offsets."""


@dataclass(frozen=True, slots=True)
class OffsetGap:
    """The range of a gap, both ends inclusive.

    Attributes:
        kind: the reason; one of GAP_KINDS to record a gap. A gap that was read may have a kind of a
            later release.
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
        gaps: all stored ones of a partition, ascending. If there are MAX_GAPS, all offsets below
            the first gap count as recorded: their gap may have been dropped.
    """
    if len(gaps) >= MAX_GAPS and end_offset + 1 < gaps[0].start_offset:
        return True
    return any(gap.start_offset <= start_offset and end_offset <= gap.end_offset for gap in gaps)


NOTHING_COPIED = -1
NEVER_TRIMMED = -1


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """The report of the RLM of a partition's leader.

    Reports are ordered by (leader_epoch, report_number).

    Attributes:
        leader_epoch: the epoch under which the broker leads the partition.
        report_number: larger than that of every earlier report of the same leader epoch.
        lineage: the broker's leader epochs, and those of deleted local records if the tier has
            them; none above leader_epoch.
        local_log_start_offset: the first offset on the broker's disk.
        log_end_offset: the offset that the next record will get.
        high_watermark, last_stable_offset: as the broker has them; exclusive.
        only_local_bytes: of the segments that begin above copied_through_offset, including the
            active one (Kafka: onlyLocalLogSegmentsSize).
        copied_through_offset: the last offset in the tier when the bytes were counted, inclusive;
            NOTHING_COPIED if there was none. While the tier is empty, the offset before the log's
            start when its copying began.
        lag_bytes: of the rolled segments that are not in the tier.
        local_trim_offset: RLM deletes local records below it, or has; the local log's start when
            they became RLM's to delete; NEVER_TRIMMED if they never were. A stored one never falls.
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
    lag_bytes: int = 0
    local_trim_offset: int = NEVER_TRIMMED

    def __post_init__(self) -> None:
        require_int32(self.broker_id, "broker_id", at_least=-1)
        require_int32(self.leader_epoch, "leader_epoch")
        require_int64(self.report_number, "report_number")
        require_int64(self.local_log_start_offset, "local_log_start_offset")
        require_int64(self.log_end_offset, "log_end_offset")
        require_int64(self.only_local_bytes, "only_local_bytes")
        require_int64(self.lag_bytes, "lag_bytes")
        require_int64(self.copied_through_offset, "copied_through_offset", at_least=NOTHING_COPIED)
        latest = self.lineage.latest_epoch
        led = latest is None or latest <= self.leader_epoch
        require(led, "leader_epochs", f"has {latest}, above leader_epoch {self.leader_epoch}")
        for name in ("high_watermark", "last_stable_offset", "local_trim_offset"):
            value = getattr(self, name)
            at_least = NEVER_TRIMMED if name == "local_trim_offset" else 0
            require_int64(value, name, at_least=at_least)
            fits = value <= self.log_end_offset
            require(fits, name, f"must not be above log_end_offset {self.log_end_offset}")


@dataclass(frozen=True, slots=True)
class PolledLog:
    """The log of a partition that a broker tiers by itself, as an RLM polls it from the cluster.

    It is for display. It is not a PartitionReport, so that no rule of retention applies it: Kafka
    owns the retention of such a partition.

    Attributes:
        broker_id, leader_epoch: of the leader that answered.
        lineage: of the newest finished segment's LEADER_EPOCH index; empty if there is none.
        log_start_offset: the first offset that Kafka lets consumers read, in the tier or on disk.
        high_watermark: exclusive.
    """

    topic_id_partition: TopicIdPartition
    broker_id: int
    leader_epoch: int
    lineage: Lineage
    log_start_offset: int
    high_watermark: int

    def __post_init__(self) -> None:
        require_int32(self.broker_id, "broker_id", at_least=-1)
        require_int32(self.leader_epoch, "leader_epoch")
        require_int64(self.log_start_offset, "log_start_offset")
        require_int64(self.high_watermark, "high_watermark")


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The state of a partition as RLMM stores it.

    Attributes:
        log_start_offset: the tier's: lower offsets are deleted or being deleted. Never falls.
        lineage: the tier's, from log_start_offset on: the merged lineages of all reports
            (Lineage.merged_with_report). Empty before the first report.
        report: the latest one; None before the first report.
        reported_at_ms: when the report came, by the database's clock; None before the first report.
        read_at_ms: now, by the database's clock.
        gaps: recorded (record_gap), at or above log_start_offset; ascending, the last MAX_GAPS.
            Empty in the answer to a report.
        highest_broker_leader_epoch: calls with a lower one are fenced; None if none is known.
        polled_log: the latest one; None if no RLM has polled it. Not in the answer to a report.
        polled_at_ms: when it came, by the database's clock.
        holds: those over the partition that lasted when the state was read, by name.
    """

    log_start_offset: int = 0
    lineage: Lineage = field(default_factory=Lineage)
    report: PartitionReport | None = None
    reported_at_ms: int | None = None
    read_at_ms: int = 0
    gaps: tuple[OffsetGap, ...] = ()
    highest_broker_leader_epoch: int | None = None
    polled_log: PolledLog | None = None
    polled_at_ms: int | None = None
    holds: tuple[Hold, ...] = ()

    @property
    def report_age_ms(self) -> int | None:
        """Return the age of the report; None if there is no report."""
        return None if self.reported_at_ms is None else self.read_at_ms - self.reported_at_ms


def log_end_offset(
    segments: Iterable[RemoteLogSegmentMetadata], lineage: Lineage, report: PartitionReport
) -> int:
    """Return the leader's log end offset, including segments that it copied after its report.

    Under one leader epoch a log only grows. So a finished segment that ends in the epoch of the
    report is that leader's, even if it was written after the report. A segment that ends in an
    earlier epoch at or above the reported end was truncated in an unclean election.
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


@dataclass(frozen=True, slots=True)
class SegmentTotals:
    """How many segments a partition has in the tier, and the bytes of their logs, without indexes.

    Attributes:
        finished_segments, finished_bytes: in COPY_SEGMENT_FINISHED, which reads may use.
        live_segments, live_bytes: in any state but DELETE_SEGMENT_FINISHED: also those that are
            being copied or deleted.
        saved_bytes: by how much the finished logs are longer than their objects.
    """

    finished_segments: int = 0
    finished_bytes: int = 0
    live_segments: int = 0
    live_bytes: int = 0
    saved_bytes: int = 0

    def __add__(self, other: "SegmentTotals") -> "SegmentTotals":
        return SegmentTotals(
            self.finished_segments + other.finished_segments,
            self.finished_bytes + other.finished_bytes,
            self.live_segments + other.live_segments,
            self.live_bytes + other.live_bytes,
            self.saved_bytes + other.saved_bytes,
        )

    def __sub__(self, other: "SegmentTotals") -> "SegmentTotals":
        return SegmentTotals(
            self.finished_segments - other.finished_segments,
            self.finished_bytes - other.finished_bytes,
            self.live_segments - other.live_segments,
            self.live_bytes - other.live_bytes,
            self.saved_bytes - other.saved_bytes,
        )


NO_SEGMENTS = SegmentTotals()


def totals_of_segment(
    state: RemoteLogSegmentState | None, size_bytes: int, custom_metadata: bytes | None
) -> SegmentTotals:
    """Return what one segment adds to the totals; None: it is not there."""
    if state in (None, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED):
        return NO_SEGMENTS
    if size_bytes < 0:
        size_bytes, custom_metadata = 0, None  # -1 is an unknown size
    if state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
        return SegmentTotals(1, size_bytes, 1, size_bytes, saved_bytes_of(custom_metadata))
    return SegmentTotals(live_segments=1, live_bytes=size_bytes)


class RemotePartitionDeleteState(Enum):
    """The state of a partition's deletion (Kafka: RemotePartitionDeleteState).

    Each state follows only the one above it.
    """

    DELETE_PARTITION_MARKED = "DELETE_PARTITION_MARKED"
    DELETE_PARTITION_STARTED = "DELETE_PARTITION_STARTED"
    DELETE_PARTITION_FINISHED = "DELETE_PARTITION_FINISHED"


_ORDER = tuple(RemotePartitionDeleteState)


def delete_predecessor(target: RemotePartitionDeleteState) -> RemotePartitionDeleteState | None:
    """Return the state before `target`; None if a partition without deletion moves to it.

    Source: RemotePartitionDeleteState.isValidTransition, which Kafka's own store does not
    enforce and ours does (a declared difference).
    """
    place = _ORDER.index(target)
    return _ORDER[place - 1] if place else None


@dataclass(frozen=True, slots=True)
class RemotePartitionDeleteMetadata:
    """The event that moves a partition's deletion (Kafka: RemotePartitionDeleteMetadata)."""

    topic_id_partition: TopicIdPartition
    state: RemotePartitionDeleteState
    event_timestamp_ms: int
    broker_id: int

    def __post_init__(self) -> None:
        require_int64(self.event_timestamp_ms, "event_timestamp_ms")
        require_int32(self.broker_id, "broker_id", at_least=-1)


@dataclass(frozen=True, slots=True)
class PartitionEvent:
    """The entry of the audit trail for one change of a partition.

    Attributes:
        revision: the partition's revision after the change.
        at_ms: the time of the change, by the database's clock.
        kind: LEADERSHIP, SEGMENT, PARTITION_DELETE, LINEAGE, LOG_START, GAP, LEADER_EPOCH_RESET or
            OBJECT_DELETION; more may follow.
        from_state: of the segment or of the partition's deletion before the change; "" if none.
        to_state: the same, after the change.
        segment_id: None if the change is not of a segment.
        key: topicId:partition:endOffset:brokerLeaderEpoch of the segment, with -1 for an unknown
            epoch (the compaction proposal's key); of an OBJECT_DELETION the object, as in its
            ObjectLocation; "" if the change is of neither.
        actor: the client of the call.
        call_id: the id of the call, as in the logs.
        request_id: of the call's context, as are reason, rule_detail and plan_id; "" if not set.
        broker_id: -1 if no broker made the change.
        broker_leader_epoch: the epoch under which the change was made; None if not set.
        repeat_count: later calls that requested the same change again.
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
        after_revision: only later events; 0 for all from the oldest on.
        segment_id: only events of this segment; None for all events.
        plan_id: only events of this sweep; "" for all events.
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
    """The events of a partition on one page, ascending by revision.

    Attributes:
        next_page_token: opaque; pass it with the same query for the next page. "" at the end.
        revision: of the partition when this page was read.
    """

    events: tuple[PartitionEvent, ...]
    next_page_token: str
    revision: int
