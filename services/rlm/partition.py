"""All that RLM keeps in memory of one partition."""

from dataclasses import dataclass, field, replace

from services.api.ids import TopicIdPartition
from services.api.partition_state import PartitionReport
from services.api.remote_log_manager import Problem, ProblemKind
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.remote_storage_manager import RemoteStorageManager
from services.api.topic_config import StoredTopicConfig
from services.rlm.copying.uncopied import Uncopied
from services.rlm.expiration.due import NothingDue
from services.rlm.kafka_log.log_dir import PartitionDir
from services.rlm.leadership import LED_BY_LOG, Leadership
from services.rlm.local_log import LocalLog, LocalPartition
from services.rlm.problem_lines import ToldProblems
from services.rlm.tier_view.raised_log_start import RaisedLogStart
from services.rlm.tier_view.recorded_gaps import RecordedGaps
from services.rlm.tier_view.revisions import Revisions
from services.rlm.tier_view.tier import Tier, TierView
from services.rlm.tier_view.tier_lineage import TierLineage

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
    told: ToldProblems = field(default_factory=ToldProblems)
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
