"""Keep RLM's state of one partition in memory: six parts, each with one writer.

    part              content                               writer
    RoleState         the log's folder, role, offsets       roles/partition_roles.py
    TierState         the state in RLMM and RSM             tier_state.py, on request of any pass
    CopyState         results of the latest copy pass       copy/task.py
    RetentionState    results of the latest retention pass  retention/expiration_task.py
    ReportState       the data that was sent to RLMM        reporting.py
    TrimState         what the broker deletes by itself     retention/trim_task.py

All other modules only read. PartitionRoles also calls begin_role and move_to of Partition when the
role or the folder changes: they drop the state of the previous role or folder.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from services.api.ids import TopicIdPartition
from services.api.lineage import Lineage
from services.api.partitions import NEVER_TRIMMED, PartitionReport
from services.api.remote_log_manager import PartitionRole, Problem, ProblemKind
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.remote_storage_manager import RemoteStorageManager
from services.api.topic_config import StoredTopicConfig
from services.rlm.copy.rules import CopyRule, lagging_segments
from services.rlm.kafka_log.indexes import largest_timestamp_ms
from services.rlm.kafka_log.local_log import LocalLog, LocalPartition
from services.rlm.kafka_log.log_dir import PartitionDir
from services.rlm.kafka_log.partition_dir import LocalSegment
from services.rlm.problem_log import ProblemLog
from services.rlm.revisions import Revisions
from services.rlm.tier import Tier
from services.rlm.tier_state import TierState

MAX_REBUILT = 100


@dataclass(frozen=True, slots=True)
class Leadership:
    """A role and its leader epoch.

    A pass reads it once, so that the whole pass runs under one epoch.

    Attributes:
        leader_epoch: None for the latest epoch in the log.
    """

    role: PartitionRole
    leader_epoch: int | None

    @property
    def is_leader(self) -> bool:
        return self.role is PartitionRole.LEADER

    def epoch_of(self, lineage: Lineage) -> int | None:
        """Return the leader epoch to act under; None if the log has none."""
        return lineage.latest_epoch if self.leader_epoch is None else self.leader_epoch

    def is_overtaken(self, lineage: Lineage) -> bool:
        """Return whether the log has records of a later leader.

        Then this broker's next role is not known yet.
        """
        latest = lineage.latest_epoch
        return self.leader_epoch is not None and latest is not None and latest > self.leader_epoch


LED_BY_LOG = Leadership(PartitionRole.LEADER, None)
"""The leadership of this broker under the latest epoch of the log."""


@dataclass(frozen=True, slots=True)
class NothingDue:
    """The state that a retention pass found when it had nothing to delete.

    Attributes:
        revision: of the partition.
        topic: the settings now, and those that must want a deletion too.
        until_s: when something may become due, on the monotonic clock; None if not before a
            revision changes.
        until_bytes: only-local bytes at which something may become due; None as for until_s.
    """

    revision: int
    topic: StoredTopicConfig
    until_s: float | None
    until_bytes: int | None


@dataclass(frozen=True, slots=True)
class Lag:
    """The rolled segments that are not in the tier, for any reason: also blocked ones.

    Attributes:
        segments, size_bytes: their number, and the size of their logs.
        oldest_timestamp_ms: the largest timestamp of the first segment; None if there is no
            segment, or the segment is unreadable.
        local_retention_ms: the age at which the broker deletes a segment; None if unknown.
    """

    segments: int = 0
    size_bytes: int = 0
    oldest_timestamp_ms: int | None = None
    local_retention_ms: int | None = None

    @property
    def deleted_at_ms(self) -> int | None:
        """Return when the broker's retention deletes the first segment; None if unknown."""
        if self.oldest_timestamp_ms is None or self.local_retention_ms is None:
            return None
        return self.oldest_timestamp_ms + self.local_retention_ms


def lag_of(segments: Sequence[LocalSegment], local_retention_ms: int | None) -> Lag:
    """Sum up the lagging segments, given earliest first."""
    oldest_ms = largest_timestamp_ms(segments[0]) if segments else None
    size_bytes = sum(segment.size_bytes for segment in segments)
    return Lag(len(segments), size_bytes, oldest_ms, local_retention_ms)


@dataclass(frozen=True, slots=True)
class SentReport:
    """A report that RLMM has accepted, and the time, on the reporter's clock."""

    report: PartitionReport
    at_s: float


@dataclass(frozen=True, slots=True)
class DraftReport:
    """A report to send, and the log and tier that it describes."""

    log: LocalLog
    tier: Tier
    begins_at: int | None
    leader_epoch: int
    report: PartitionReport


@dataclass
class RoleState:
    """The role of this broker for the partition. Writer: roles/partition_roles.py.

    Attributes:
        local: the partition's log; None if this broker has no folder of it (any more).
        leadership: the role and its leader epoch; None without a role: only the tier has the
            partition.
        log_is_not_served: the log is here, but RLM knows of no role of this broker for the
            partition.
        log_is_elsewhere: this broker's log directories have no log of it, and RLM knows of no role:
            another broker may have more than the tier.
        stable_offset: the last stable offset in the latest answer of the leader, this broker; None
            if it was not requested, or did not answer.
        cluster_id: the broker's cluster; None if the cluster was not read.
    """

    local: LocalPartition | None
    leadership: Leadership | None
    cluster_id: str | None = None
    log_is_not_served: bool = False
    log_is_elsewhere: bool = False
    stable_offset: int | None = None

    @property
    def is_leader(self) -> bool:
        return self.leadership is not None and self.leadership.is_leader

    def as_settled(self, log: LocalLog) -> LocalLog:
        """Return `log` with the lowest known last stable offset.

        The leader also knows transactions whose end not all in-sync replicas have; no file contains
        them.
        """
        stable_offset = self.stable_offset
        if stable_offset is None or stable_offset >= log.last_stable_offset:
            return log
        return replace(log, last_stable_offset=max(stable_offset, log.log_start_offset))


@dataclass
class CopyState:
    """The results of the latest copy pass. Writer: copy/task.py.

    Attributes:
        problems: causes that stop copying, and losses.
        rebuilt: index files that were rebuilt; later passes do not read a copied segment again, so
            the newest hundred stay here.
        lost: offset ranges that the broker deleted before their copy, recorded or not.
        rule: of the latest pass.
        counted: the tier that the lag was last counted by; None if it was not counted.
        blocked_until_restart: why no pass copies the partition before its role changes or RLM
            restarts; None if passes copy.
        problem_log: logs each problem once; called by tasks.py after each pass.
    """

    problems: tuple[Problem, ...] = ()
    rebuilt: list[Problem] = field(default_factory=list)
    lost: tuple[tuple[int, int], ...] = ()
    lag: Lag = field(default_factory=Lag)
    rule: CopyRule = field(default_factory=CopyRule)
    counted: Tier | None = None
    blocked_until_restart: Problem | None = None
    problem_log: ProblemLog = field(default_factory=ProblemLog)

    def record(self, problems: tuple[Problem, ...]) -> None:
        """Replace the problems by those of a pass; add the indexes that it rebuilt."""
        self.problems = tuple(p for p in problems if p.kind is not ProblemKind.INDEX_REBUILT)
        known = {p.path for p in self.rebuilt}
        rebuilt = (p for p in problems if p.kind is ProblemKind.INDEX_REBUILT)
        self.rebuilt += [p for p in rebuilt if p.path not in known]
        del self.rebuilt[:-MAX_REBUILT]


@dataclass
class RetentionState:
    """The results of the latest retention pass. Writer: retention/expiration_task.py.

    Attributes:
        topic_config: the topic's settings; None if no pass has read them.
        nothing_due: set by a pass that found nothing to delete; None if the latest pass deleted
            something.
        uncounted_bytes: bytes of finished segments that are not part of the partition's size.
        copy_paused: copy passes begin no other segment, because retention is reading the partition
            again after a copy changed it during the read.
    """

    topic_config: StoredTopicConfig | None = None
    nothing_due: NothingDue | None = None
    uncounted_bytes: int = 0
    copy_paused: bool = False


@dataclass
class ReportState:
    """The data that was sent to RLMM about the partition. Writer: reporting.py.

    Attributes:
        announced: the role that RLMM knows; None if the present role was not announced.
        number: the highest number of a report; None if RLMM's has to be read first.
        sent: the latest report; None if this process sent none.
        draft: the latest draft, valid as long as log and tier are the same objects.
        local_trim_offset: as RLMM has it (PartitionReport); None if it has to be read first.
    """

    announced: Leadership | None = None
    number: int | None = None
    sent: SentReport | None = None
    draft: DraftReport | None = None
    local_trim_offset: int | None = None

    @property
    def trim_offset(self) -> int:
        return NEVER_TRIMMED if self.local_trim_offset is None else self.local_trim_offset


@dataclass
class TrimState:
    """What was found about local deletions. Writer: retention/trim_task.py.

    Attributes:
        is_ours: local records are RLM's to delete.
        broker_retention: BROKER_RETENTION_SET, if the broker deletes them, too.
    """

    is_ours: bool = False
    broker_retention: Problem | None = None


@dataclass
class Partition:
    """The state of one partition; the module's docstring names the writer of each part."""

    topic_id_partition: TopicIdPartition
    role: RoleState
    tier: TierState
    copy: CopyState = field(default_factory=CopyState)
    retention: RetentionState = field(default_factory=RetentionState)
    report: ReportState = field(default_factory=ReportState)
    trim: TrimState = field(default_factory=TrimState)

    def begin_role(self, leadership: Leadership) -> None:
        """Begin a role; drop the results of the previous role."""
        self.role.leadership = leadership
        self.report.announced = self.copy.blocked_until_restart = self.retention.nothing_due = None
        self.copy.lag, self.copy.counted = Lag(), None
        self.report.local_trim_offset = self.trim.broker_retention = None

    def lagging(self, log: LocalLog, tier: Tier) -> list[LocalSegment]:
        """Return the lag of a log; none if another broker leads, or copying is disabled."""
        has_lag = self.role.is_leader and self.copy.rule.has_lag
        return lagging_segments(log, tier) if has_lag else []

    def count_lag(self, log: LocalLog, tier: Tier) -> list[LocalSegment]:
        """Count the lag, for metrics, sums and descriptions alike; return its segments."""
        segments = self.lagging(log, tier)
        self.copy.lag = lag_of(segments, self.copy.rule.local_retention_ms)
        self.copy.counted = tier
        return segments

    @property
    def is_counted(self) -> bool:
        """Return whether the lag was counted by the tier as it is, as far as is known."""
        tier = self.tier.cached
        return tier.known is not None and self.copy.counted is tier and not self.tier.is_behind_poll

    def move_to(self, folder: PartitionDir | None) -> None:
        """Use the folder that now has the log; None if there is none."""
        local = self.role.local
        if folder is None:
            self.role.local = None
        elif local is not None and local.folder.path == folder.path:
            local.folder = folder  # its log start offset may have moved
        else:
            self.role.local = LocalPartition(folder)
            self.copy.blocked_until_restart = self.retention.nothing_due = None


def new_partition(
    topic_id_partition: TopicIdPartition,
    local: LocalPartition | None,
    rsm: RemoteStorageManager,
    rlmm: RemoteLogMetadataManager,
    revisions: Revisions | None = None,
    cluster_id: str | None = None,
) -> Partition:
    """Make a partition; if its log is here, this broker leads it until it has a role."""
    return Partition(
        topic_id_partition,
        RoleState(local, None if local is None else LED_BY_LOG, cluster_id),
        TierState(rsm, rlmm, topic_id_partition, revisions),
    )


@dataclass(frozen=True, slots=True)
class Finishing:
    """The key of a scheduled deletion that continues after the partition's role ends."""

    topic_id_partition: TopicIdPartition


@dataclass(frozen=True, slots=True)
class ServedPartition:
    """A partition that can be read here.

    Attributes:
        leader_epoch: as this RLM knows it by its role or its log; None if it has neither.
        has_role: this broker has a role for it.
        remote_size_bytes: of its finished segments in the tier.
    """

    topic_id_partition: TopicIdPartition
    leader_epoch: int | None = None
    has_role: bool = False
    remote_size_bytes: int = 0
