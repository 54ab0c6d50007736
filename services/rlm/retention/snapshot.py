"""Read the input of retention at one revision, and decide whether a pass is due."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from uuid import UUID

from services.api.calls import AtRevision
from services.api.errors import ConcurrentUpdateError
from services.api.ids import TopicIdPartition
from services.api.partitions import PartitionState
from services.api.remote_log_metadata_manager import MAX_PAGE_SIZE, RemoteLogMetadataManager
from services.api.retention import (
    DEFAULT_COPY_GRACE_MS,
    SIZE_NOT_APPLIED,
    RetentionPlan,
    newest_ms,
    plan_retention,
    young_copies,
)
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.topic_config import UNLIMITED, StoredTopicConfig, TopicConfig
from services.rlm.partition import NothingDue
from services.rlm.tier import Tier

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


LEASE_CHECK_MS = 60_000
"""The interval of checks while a copy is leased or runs here, or an export keeps a segment: the end
of any of these changes no revision."""

MAX_SEGMENTS = 100_000
"""The segments of all snapshots in the process, about 110 MiB. A pass lists its whole partition,
and as many passes run at once as there are threads."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A partition at one revision, with all of its segments.

    A segment takes up to some KiB, so a caller that takes several snapshots at once bounds the
    number of segments (MAX_SEGMENTS).
    """

    state: PartitionState
    segments: tuple[RemoteLogSegmentMetadata, ...]
    revision: int

    def plan(self, topic: StoredTopicConfig, being_copied: Iterable[UUID] = ()) -> RetentionPlan:
        """Return the plan of retention, now by the database's clock."""
        young = {segment.remote_log_segment_id.id for segment in self.young_copies()}
        return plan_retention(
            self.segments,
            self.state,
            topic.config,
            topic.earlier_config,
            being_copied=young.union(being_copied),
            now_ms=self.state.read_at_ms,
        )

    def tier(self) -> Tier:
        """Return the snapshot in the form that copy passes use."""
        tier = Tier(
            known=True,
            revision=self.revision,
            log_start_offset=self.state.log_start_offset,
        )
        for segment in self.segments:
            tier.add(segment)
        return tier

    def uncounted_bytes(self, plan: RetentionPlan) -> int | None:
        """Return the bytes of finished segments that are not part of the partition's size.

        Such a segment is outside the lineage, below the log start, or a second copy. The result is
        None if the plan has no size.
        """
        if plan.counted_bytes is None:
            return None
        finished = (s for s in self.segments if s.state is _FINISHED)
        return sum(max(s.segment_size_in_bytes, 0) for s in finished) - plan.counted_bytes

    def young_copies(self) -> list[RemoteLogSegmentMetadata]:
        """Return the segments that count as being copied, by any process."""
        return young_copies(self.segments, self.state.read_at_ms)


def read_snapshot(
    rlmm: RemoteLogMetadataManager,
    topic_id_partition: TopicIdPartition,
    state: AtRevision[PartitionState],
) -> Snapshot:
    """List a partition's segments at the state's revision.

    Raises:
        ConcurrentUpdateError: if the revision has changed; read the state again.
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


def may_be_due(
    tier: Tier,
    only_local_bytes: int,
    topic: StoredTopicConfig,
    nothing_due: NothingDue | None,
    now_s: float,
) -> bool:
    """Return whether retention has to read the partition's segments; True if that is unsure."""
    if tier.segments == 0 and not tier.unfinished:
        return False
    # While a first limit waits, nothing is due by it.
    has_limits = _has_limit(topic.config) and _has_limit(topic.earlier_config)
    if not has_limits and not tier.unfinished and not tier.has_finished_below_log_start:
        return False
    if nothing_due is None:
        return True
    revisions = [tier.revision]
    if nothing_due.until_s is not None:
        revisions.append(tier.before_tails)
    if nothing_due.revision not in revisions or nothing_due.topic != topic:
        return True
    if nothing_due.until_s is not None and now_s >= nothing_due.until_s:
        return True
    # Revisions do not move when the local log grows.
    return nothing_due.until_bytes is not None and only_local_bytes >= nothing_due.until_bytes


def _has_limit(config: TopicConfig) -> bool:
    return config.retention_ms != UNLIMITED or config.retention_bytes != UNLIMITED


def due_after_ms(
    snapshot: Snapshot,
    plan: RetentionPlan,
    topic: StoredTopicConfig,
    being_copied: Collection[UUID] = (),
) -> int | None:
    """Return the milliseconds until time alone may make something due; None if it never does.

    The segment that ended the scan exceeds retention.ms, a copy no longer counts as running, or no
    export keeps the segment any more.

    Args:
        plan: of this snapshot, these settings and `being_copied`; without deletions to begin.
    """
    now_ms = snapshot.state.read_at_ms
    young = {s.remote_log_segment_id.id: s for s in snapshot.young_copies()}
    moments_ms = [s.event_timestamp_ms + DEFAULT_COPY_GRACE_MS for s in young.values()]
    for segment in snapshot.segments:
        id = segment.remote_log_segment_id.id
        if id not in young and (segment.copy_leased or id in being_copied):
            moments_ms.append(now_ms + LEASE_CHECK_MS)
            break
    if plan.retained_for is not None:
        moments_ms.append(now_ms + LEASE_CHECK_MS)
    # Segments after it wait until it is deleted, even if they have been due for long.
    stopped_at, config = plan.stopped_at, _stopping(plan, topic)
    if config.retention_ms != UNLIMITED and stopped_at is not None:
        moments_ms.append(newest_ms(stopped_at) + config.retention_ms + 1)
    return min((at_ms - now_ms for at_ms in moments_ms if at_ms > now_ms), default=None)


def due_at_bytes(plan: RetentionPlan, topic: StoredTopicConfig) -> int | None:
    """Return the only-local bytes from which the size rule may delete; None if it never does.

    Args:
        plan: by these settings; without deletions to begin.
    """
    stopped_at, config = plan.stopped_at, _stopping(plan, topic)
    if config.retention_bytes == UNLIMITED or stopped_at is None or plan.counted_bytes is None:
        return None
    # The rule deletes at most the excess. If it was not applied, a later report may change that.
    is_applied = not any(note.startswith(SIZE_NOT_APPLIED) for note in plan.notes)
    excess_bytes = max(stopped_at.segment_size_in_bytes, 1) if is_applied else 1
    return config.retention_bytes - plan.counted_bytes + excess_bytes


def _stopping(plan: RetentionPlan, topic: StoredTopicConfig) -> TopicConfig:
    """Return the settings by which the scan of the plan ended."""
    return topic.earlier_config if plan.waiting else topic.config
