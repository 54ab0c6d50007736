"""All that RLM keeps in memory of one partition."""

from dataclasses import dataclass, field

from services.api.ids import TopicIdPartition
from services.api.partition_state import PartitionReport
from services.api.remote_log_manager import Problem, ProblemKind
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.remote_storage_manager import RemoteStorageManager
from services.rlm.expiration.due import NothingDue
from services.rlm.local_log import LocalPartition
from services.rlm.tier_view.recorded_gaps import RecordedGaps
from services.rlm.tier_view.tier import TierView
from services.rlm.tier_view.tier_lineage import TierLineage

MAX_MENDED = 100


@dataclass(frozen=True, slots=True)
class SentReport:
    """A report that RLMM has answered, and when, by the reporter's clock."""

    report: PartitionReport
    at_s: float


@dataclass
class Partition:
    """One partition: its folder, its part of the tier, and what the latest pass found.

    Attributes:
        local: None: this broker has no folder of it (any more).
        announced: RLMM was told that it is led here, under `announced_epoch`.
        blocked: why no pass will copy it before a restart.
        report_number: the highest given to a report; None: RLMM's is to be read first.
        sent_report: the latest; None: none by this process.
        nothing_due: what the latest expiration pass found nothing to delete in; None: it deleted
            something, or there was none.
    """

    topic_id_partition: TopicIdPartition
    local: LocalPartition | None
    tier: TierView
    tier_lineage: TierLineage
    gaps: RecordedGaps
    announced: bool = False
    announced_epoch: int | None = None
    blocked: Problem | None = None
    problems: tuple[Problem, ...] = ()
    mended: list[Problem] = field(default_factory=list)
    report_number: int | None = None
    sent_report: SentReport | None = None
    nothing_due: NothingDue | None = None

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
) -> Partition:
    return Partition(
        topic_id_partition,
        local,
        TierView(rlmm, topic_id_partition),
        TierLineage(rsm),
        RecordedGaps(rlmm, topic_id_partition),
    )
