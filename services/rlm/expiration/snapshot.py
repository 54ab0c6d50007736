"""All that retention judges a partition by, read at one revision."""

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from services.api.calls import AtRevision
from services.api.errors import ConcurrentUpdateError
from services.api.ids import TopicIdPartition
from services.api.partition_state import PartitionState
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.retention import RetentionPlan, plan_retention, young_copies
from services.api.segment_queries import MAX_PAGE_SIZE
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.topic_config import TopicConfig
from services.rlm.tier_view.tier import Tier

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A partition at one revision, with every segment of it: some KiB each at most, so that who
    takes several at once bounds them (SegmentBudget)."""

    state: PartitionState
    segments: tuple[RemoteLogSegmentMetadata, ...]
    revision: int

    def plan(self, config: TopicConfig, being_copied: Iterable[UUID] = ()) -> RetentionPlan:
        """What is to be deleted, now by the database's clock."""
        young = {segment.remote_log_segment_id.id for segment in self.young_copies()}
        return plan_retention(
            self.segments,
            self.state,
            config,
            being_copied=young.union(being_copied),
            now_ms=self.state.read_at_ms,
        )

    def tier(self) -> Tier:
        """The same as copy passes see it."""
        tier = Tier(
            known=True,
            revision=self.revision,
            log_start_offset=self.state.log_start_offset,
        )
        for segment in self.segments:
            tier.add(segment)
        return tier

    def uncounted_bytes(self, plan: RetentionPlan) -> int | None:
        """Of what has finished, what is no part of the partition's size: off the lineage, below the
        log start, or a second copy; None: the plan does not tell."""
        if plan.counted_bytes is None:
            return None
        finished = (s for s in self.segments if s.state is _FINISHED)
        return sum(max(s.segment_size_in_bytes, 0) for s in finished) - plan.counted_bytes

    def young_copies(self) -> list[RemoteLogSegmentMetadata]:
        """What counts as being copied, by whomever."""
        return young_copies(self.segments, self.state.read_at_ms)


def take_snapshot(
    rlmm: RemoteLogMetadataManager,
    topic_id_partition: TopicIdPartition,
    state: AtRevision[PartitionState],
) -> Snapshot:
    """List a partition's segments as they are at the state's revision.

    Raises:
        ConcurrentUpdateError: it has another revision now; read the state again.
    """
    segments: list[RemoteLogSegmentMetadata] = []
    token = ""
    while True:
        page = rlmm.list_remote_log_segments(
            topic_id_partition, page_size=MAX_PAGE_SIZE, page_token=token
        )
        if page.revision != state.revision:
            raise ConcurrentUpdateError(
                f"{topic_id_partition} changed from revision {state.revision} to {page.revision} "
                "while it was read"
            )
        segments += page.segments
        token = page.next_page_token
        if not token:
            return Snapshot(state.value, tuple(segments), state.revision)
