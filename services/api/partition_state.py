"""What RLMM knows of a partition beside its segments: the tier's history, the leader's report."""

from dataclasses import dataclass, field

from services.api.ids import TopicIdPartition
from services.api.lineage import Lineage
from services.api.offset_gaps import OffsetGap
from services.api.validation import require, require_int32, require_int64

NOTHING_COPIED = -1


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """What the RLM of a partition's leader says of it. Reports are ordered by (leader_epoch,
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
        """How old the report is; None: nobody has reported."""
        return None if self.reported_at_ms is None else self.read_at_ms - self.reported_at_ms
