"""Sum up the partitions of each topic: in the tier, and in the local logs that RLMs describe."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.partitions import NO_SEGMENTS, SegmentTotals
from services.api.remote_log_manager import PartitionDescription
from services.api.remote_log_metadata_manager import PartitionSummary
from services.views.documents import Json


@dataclass(slots=True)
class TopicFigures:
    """A topic and the sums over its partitions.

    Attributes:
        partitions: those in the tier.
        local_partitions: how many of its partitions an RLM described; what follows is of these.
        lag_bytes, lag_segments: rolled, and not in the tier yet.
        blocked_partitions: those with a problem that blocks segments.
    """

    topic_id: UUID
    name: str
    partitions: list[PartitionSummary] = field(default_factory=list)
    totals: SegmentTotals = NO_SEGMENTS
    deleting: int = 0
    is_on_hold: bool = False
    awaits_confirmation: bool = False
    local_partitions: int = 0
    local_bytes: int = 0
    lag_bytes: int = 0
    lag_segments: int = 0
    problems: int = 0
    blocked_partitions: int = 0

    def add(self, summary: PartitionSummary) -> None:
        """Add a partition of the tier."""
        self.partitions.append(summary)
        self.totals += summary.totals
        self.deleting += summary.delete_state is not None
        self.is_on_hold |= summary.is_on_hold
        self.awaits_confirmation |= summary.awaits_confirmation

    def add_local(self, described: PartitionDescription) -> None:
        """Add the local log of a partition."""
        self.local_partitions += 1
        self.local_bytes += described.local_size_bytes
        self.lag_bytes += described.lag_bytes
        self.lag_segments += described.lag_segments
        self.problems += len(described.problems)
        self.blocked_partitions += any(each.blocked_segments for each in described.problems)

    def as_json(self) -> Json:
        """Return the name and the id."""
        return {"topic": self.name, "topic_id": uuid_to_text(self.topic_id)}


def sum_topics(
    summaries: Iterable[PartitionSummary], described: Iterable[PartitionDescription] = ()
) -> dict[UUID, TopicFigures]:
    """Return the figures of each topic by id, in the order of `summaries`.

    Args:
        described: the local logs, each once, also of topics that are not in the tier.
    """
    topics: dict[UUID, TopicFigures] = {}

    def of(name: TopicIdPartition) -> TopicFigures:
        return topics.setdefault(name.topic_id, TopicFigures(name.topic_id, name.topic))

    for summary in summaries:
        of(summary.topic_id_partition).add(summary)
    for each in described:
        of(each.topic_id_partition).add_local(each)
    return topics
