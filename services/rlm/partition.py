"""All that RLM keeps in memory of one partition."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from services.api.ids import TopicIdPartition
from services.api.lineage import Lineage
from services.api.partitions import PartitionReport
from services.api.remote_log_manager import PartitionRole, Problem, ProblemKind
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.remote_storage_manager import RemoteStorageManager
from services.api.topic_config import StoredTopicConfig
from services.rlm.kafka_log.indexes import largest_timestamp_ms
from services.rlm.kafka_log.local_log import LocalLog, LocalPartition
from services.rlm.kafka_log.log_dir import PartitionDir
from services.rlm.kafka_log.partition_dir import LocalSegment
from services.rlm.problem_log import ProblemLog
from services.rlm.tier_state import (
    RaisedLogStart,
    RecordedGaps,
    Revisions,
    Tier,
    TierLineage,
    TierView,
)


@dataclass(frozen=True, slots=True)
class Leadership:
    """A role and the leader epoch that it was told with. A pass reads it once: what it began in one
    role it never goes on with under the epoch of another.

    Attributes:
        leader_epoch: None: the latest of the log's own.
    """

    role: PartitionRole
    leader_epoch: int | None

    @property
    def is_leader(self) -> bool:
        return self.role is PartitionRole.LEADER

    def epoch_of(self, lineage: Lineage) -> int | None:
        """The leader epoch to act under; None: the log does not tell."""
        return lineage.latest_epoch if self.leader_epoch is None else self.leader_epoch

    def is_overtaken(self, lineage: Lineage) -> bool:
        """The log has records of a later leader than was told of: what this broker is to the
        partition now it is still to be told."""
        latest = lineage.latest_epoch
        return self.leader_epoch is not None and latest is not None and latest > self.leader_epoch


LED_BY_LOG = Leadership(PartitionRole.LEADER, None)
"""Led here, under the epoch that its log tells."""


@dataclass(frozen=True, slots=True)
class NothingDue:
    """A pass that had nothing to delete, and what it saw.

    Attributes:
        revision, config_revision: of the partition and of its topic's settings.
        until_s: something may be asked for from here on, by a clock that only grows; None: never,
            as long as the revisions stay.
        until_bytes: or once so many bytes are only here; None: never, in the same way.
    """

    revision: int
    config_revision: int
    until_s: float | None
    until_bytes: int | None


@dataclass(frozen=True, slots=True)
class Uncopied:
    """
    Attributes:
        segments, size_bytes: of the rolled segments that are not copied, whatever keeps them.
        oldest_timestamp_ms: the largest timestamp of the first of them; None: there is none, or it
            cannot be read.
        local_retention_ms: how old that may get before the broker deletes the segment; None: that
            is not known.
    """

    segments: int = 0
    size_bytes: int = 0
    oldest_timestamp_ms: int | None = None
    local_retention_ms: int | None = None

    @property
    def deleted_at_ms(self) -> int | None:
        """When retention.ms of the broker takes the first of them; None: it is not known."""
        if self.oldest_timestamp_ms is None or self.local_retention_ms is None:
            return None
        return self.oldest_timestamp_ms + self.local_retention_ms


def uncopied_of(segments: Sequence[LocalSegment], local_retention_ms: int | None) -> Uncopied:
    """
    Args:
        segments: earliest first.
    """
    oldest_ms = largest_timestamp_ms(segments[0]) if segments else None
    size_bytes = sum(segment.size_bytes for segment in segments)
    return Uncopied(len(segments), size_bytes, oldest_ms, local_retention_ms)


MAX_MENDED = 100


@dataclass(frozen=True, slots=True)
class SentReport:
    """A report that RLMM has answered, and when, by the reporter's clock."""

    report: PartitionReport
    at_s: float


@dataclass(frozen=True, slots=True)
class DraftedReport:
    """What is to be said of a partition, and by what."""

    log: LocalLog
    tier: Tier
    leader_epoch: int
    report: PartitionReport


@dataclass
class Partition:
    """One partition: its folder, its part of the tier, and what the latest pass found.

    Attributes:
        local: None: this broker has no folder of it (any more).
        log_is_not_served: its log lies here, but nobody has said, or says any more, that this
            broker leads or follows it.
        cluster_id: of the broker's cluster, where it was asked; None: it was not.
        leadership: what this broker is to it; None: nothing, only the tier has it.
        told_stable_offset: the last stable offset that the leader, this broker, told when it was
            asked last; None: it did not, or nobody asks it.
        announced: what RLMM was told of that; None: nothing.
        blocked: why no pass will copy it before it has another role, or a restart.
        told: which problems the log has been told of.
        uncopied: of the latest copy pass; zeros while nothing is to be copied.
        report_number: the highest given to a report; None: RLMM's is to be read first.
        sent_report: the latest; None: none by this process.
        drafted: the latest draft of one, good for as long as log and tier are the same.
        topic_config: as the latest expiration pass read it; None: none has.
        copies_wait: retention reads the partition anew, as it changed while it was read: a copy
            pass begins no other segment.
        uncounted_bytes: of the tier's finished segments, what is no part of the partition's size,
            as the latest expiration pass saw it that judged them.
        nothing_due: what the latest expiration pass found nothing to delete in; None: it deleted
            something, or there was none.
    """

    topic_id_partition: TopicIdPartition
    local: LocalPartition | None
    tier: TierView
    tier_lineage: TierLineage
    gaps: RecordedGaps
    raised_log_start: RaisedLogStart
    log_is_not_served: bool = False
    cluster_id: str | None = None
    leadership: Leadership | None = None
    told_stable_offset: int | None = None
    announced: Leadership | None = None
    blocked: Problem | None = None
    problems: tuple[Problem, ...] = ()
    told: ProblemLog = field(default_factory=ProblemLog)
    mended: list[Problem] = field(default_factory=list)
    uncopied: Uncopied = field(default_factory=Uncopied)
    report_number: int | None = None
    sent_report: SentReport | None = None
    drafted: DraftedReport | None = None
    topic_config: StoredTopicConfig | None = None
    copies_wait: bool = False
    uncounted_bytes: int = 0
    nothing_due: NothingDue | None = None

    def take_role(self, leadership: Leadership) -> None:
        """Of what was found in another role nothing holds any more."""
        self.leadership = leadership
        self.announced = self.blocked = self.nothing_due = None
        self.uncopied = Uncopied()

    def as_settled(self, log: LocalLog) -> LocalLog:
        """`log` with the lowest last stable offset of all that are known: the leader knows of
        transactions whose end not all in-sync replicas have, which no file tells."""
        told = self.told_stable_offset
        if told is None or told >= log.last_stable_offset:
            return log
        return replace(log, last_stable_offset=max(told, log.log_start_offset))

    def move_to(self, found: PartitionDir | None) -> None:
        """Its folder is there now; None: nowhere."""
        if found is None:
            self.local = None
        elif self.local is not None and self.local.found.path == found.path:
            self.local.found = found  # its log start offset may have moved
        else:
            self.local = LocalPartition(found)
            self.blocked = self.nothing_due = None

    def note(self, problems: tuple[Problem, ...]) -> None:
        """Keep what a pass found. What was mended stays known, the newest hundred of it: later
        passes do not look at a copied segment again."""
        self.problems = tuple(p for p in problems if p.kind is not ProblemKind.INDEX_REBUILT)
        known = {p.path for p in self.mended}
        rebuilt = (p for p in problems if p.kind is ProblemKind.INDEX_REBUILT)
        self.mended += [p for p in rebuilt if p.path not in known]
        del self.mended[:-MAX_MENDED]


def new_partition(
    topic_id_partition: TopicIdPartition,
    local: LocalPartition | None,
    rsm: RemoteStorageManager,
    rlmm: RemoteLogMetadataManager,
    revisions: Revisions | None = None,
    cluster_id: str | None = None,
) -> Partition:
    """One whose log is here is led here, as its log tells, until it takes another role."""
    return Partition(
        topic_id_partition,
        local,
        TierView(rlmm, topic_id_partition, revisions),
        TierLineage(rsm),
        RecordedGaps(rlmm, topic_id_partition),
        RaisedLogStart(rlmm, topic_id_partition),
        cluster_id=cluster_id,
        leadership=None if local is None else LED_BY_LOG,
    )
