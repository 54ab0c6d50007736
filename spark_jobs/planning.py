"""Plan the retention or the removal of partitions from RLMM's data."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from uuid import UUID

import pyarrow as pa
from tenacity import Retrying

from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition
from services.api.partitions import RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import (
    PartitionSummary,
    RemoteLogMetadataManager,
    SegmentPage,
)
from services.api.retention import Deletion, DeletionReason, plan_retention, young_copies
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.topic_config import RetentionOwner, StoredTopicConfig, TopicConfig
from spark_jobs.connections import Services
from spark_jobs.plan import (
    PLAN_SCHEMA,
    PartitionPlan,
    Row,
    batches_of,
    partition_key,
    rows_in,
    rows_of,
    segment_of,
    topic_id_partition_of,
)

BEING_DELETED = "the partition is being deleted; `sediment sweep removal` removes it"
GONE = "the partition was removed since the scan"
NO_OWNER = "sediment.retention.owner is not set, so RLM applies retention; set it to sweep"
PAUSED = "sediment.sweep.paused is set"
ON_HOLD = "sediment.hold is set"
NO_REPORT = "no leader has reported yet"
_DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED


def plan_scanned(
    batches: Iterable[pa.RecordBatch], services: Services, copy_grace_ms: int
) -> Iterator[pa.RecordBatch]:
    """Plan the partitions of a scan: SCAN_SCHEMA to PLAN_SCHEMA.

    Holds one partition's segments in memory at a time.
    """
    with services.connected_rlmm() as rlmm:
        planner = RetentionPlanner(rlmm, services.retrying(), copy_grace_ms)
        plans = (
            planner.plan_rows(rows) for _, rows in groupby(rows_in(batches), key=partition_key)
        )
        yield from batches_of(chain.from_iterable(map(rows_of, plans)), PLAN_SCHEMA)


class RetentionPlanner:
    """Plan retention per partition; read each topic's settings once. Not thread-safe."""

    def __init__(
        self, rlmm: RemoteLogMetadataManager, retrying: Retrying, copy_grace_ms: int
    ) -> None:
        """Treat a COPY_SEGMENT_STARTED younger than `copy_grace_ms` as being copied."""
        self._rlmm = rlmm
        self._retrying = retrying
        self._copy_grace_ms = copy_grace_ms
        self._configs: dict[UUID, StoredTopicConfig] = {}

    def plan_rows(self, rows: Iterator[Row]) -> PartitionPlan:
        """Plan one partition from its rows of a scan, at least one."""
        first = next(rows)
        tp, revision = topic_id_partition_of(first), first["revision"]
        try:
            config = self._config(tp.topic_id)
            skipped = BEING_DELETED if first["delete_state"] else _why_skipped(config.config)
            if skipped is not None:
                left = () if skipped == BEING_DELETED else chain([first], rows)
                return self._skipped_plan(tp, revision, config, skipped, left)
            segments, earlier = _segments_and_plan_ids(chain([first], rows))
            return self._plan(tp, revision, config, segments, earlier)
        except RemoteResourceNotFoundError:
            return PartitionPlan(tp, revision, skipped=GONE)

    def _skipped_plan(
        self,
        tp: TopicIdPartition,
        revision: int,
        config: StoredTopicConfig,
        skipped: str,
        rows: Iterable[Row],
    ) -> PartitionPlan:
        """Plan nothing new, but finish the deletions that were marked a grace period ago.

        The segments were marked then, and have not been readable since.
        """
        segments, earlier = _segments_and_plan_ids(r for r in rows if r["state"] == _DELETING.name)
        deletions: tuple[Deletion, ...] = ()
        if segments:
            now_ms = self._retrying(self._rlmm.partition_state, tp).value.read_at_ms
            deletions = tuple(
                Deletion(s, DeletionReason.DELETION_NOT_FINISHED, f"found {s.state.value}")
                for s in segments
                if s.event_timestamp_ms <= now_ms - self._copy_grace_ms
            )
        return PartitionPlan(
            topic_id_partition=tp,
            revision=revision,
            config_revision=config.revision,
            skipped=skipped,
            deletions=deletions,
            earlier_plans=earlier,
        )

    def plan_again(self, tp: TopicIdPartition) -> PartitionPlan:
        """Plan one partition as it is now.

        Raises:
            RemoteResourceNotFoundError: the partition is gone.
        """
        self._configs.pop(tp.topic_id, None)
        config = self._config(tp.topic_id)
        # The revision of the first page: if a later page shows a newer one, RLMM refuses the marks.
        pages = self._retrying(lambda: list(_pages(self._rlmm, tp)))
        revision = pages[0].revision
        skipped = _why_skipped(config.config)
        if skipped is not None:
            return PartitionPlan(tp, revision, config.revision, skipped=skipped)
        segments = [segment for page in pages for segment in page.segments]
        return self._plan(tp, revision, config, segments, {})

    def _plan(
        self,
        tp: TopicIdPartition,
        revision: int,
        config: StoredTopicConfig,
        segments: Sequence[RemoteLogSegmentMetadata],
        earlier: Mapping[UUID, str],
    ) -> PartitionPlan:
        state = self._retrying(self._rlmm.partition_state, tp).value
        young = young_copies(segments, state.read_at_ms, self._copy_grace_ms)
        being_copied = {segment.remote_log_segment_id.id for segment in young}
        made = plan_retention(
            segments, state, config.config, being_copied=being_copied, now_ms=state.read_at_ms
        )
        nothing_new = ON_HOLD if config.config.hold else None
        return PartitionPlan(
            topic_id_partition=tp,
            revision=revision,
            config_revision=config.revision,
            log_start_offset=made.log_start_offset,
            skipped=nothing_new or (NO_REPORT if state.report is None else None),
            notes=made.notes,
            deletions=made.deletions,
            earlier_plans=earlier,
        )

    def _config(self, topic_id: UUID) -> StoredTopicConfig:
        if topic_id not in self._configs:
            self._configs[topic_id] = self._retrying(self._rlmm.topic_config, topic_id)
        return self._configs[topic_id]


def _why_skipped(config: TopicConfig) -> str | None:
    """Explain why a sweep skips a topic; None if it does not."""
    if config.retention_owner is None:
        return NO_OWNER
    if config.retention_owner is not RetentionOwner.SWEEP:
        return f"sediment.retention.owner is {config.retention_owner.value}"
    return PAUSED if config.sweep_paused else None


def _segments_and_plan_ids(
    rows: Iterable[Row],
) -> tuple[list[RemoteLogSegmentMetadata], dict[UUID, str]]:
    segments: list[RemoteLogSegmentMetadata] = []
    plan_ids: dict[UUID, str] = {}
    for row in rows:
        segment = segment_of(row)
        segments.append(segment)
        if row["plan_id"] is not None:
            plan_ids[segment.remote_log_segment_id.id] = row["plan_id"]
    return segments, plan_ids


def _pages(rlmm: RemoteLogMetadataManager, tp: TopicIdPartition) -> Iterator[SegmentPage]:
    token = ""
    while True:
        page = rlmm.list_remote_log_segments(tp, page_token=token)
        yield page
        token = page.next_page_token
        if not token:
            return


IN_GRACE = "marked for deletion, within the grace period"
_MARKED = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
_STARTED = RemotePartitionDeleteState.DELETE_PARTITION_STARTED


def plan_listed(
    batches: Iterable[pa.RecordBatch], services: Services, topics: Sequence[str], grace_ms: int
) -> Iterator[pa.RecordBatch]:
    """Plan the partitions that are MARKED or STARTED: PLAN_SCHEMA without their segments.

    Ignores `batches`: a single task runs it.
    """
    with services.connected_rlmm() as rlmm:
        planner = RemovalPlanner(rlmm, services.retrying(), grace_ms)
        plans = (plan for topic in topics or [""] for plan in planner.plans(topic))
        yield from batches_of((row for plan in plans for row in rows_of(plan)), PLAN_SCHEMA)


def plan_removal(summary: PartitionSummary, is_on_hold: bool, grace_ms: int) -> PartitionPlan:
    """Plan a MARKED or STARTED partition; RLMM refuses the marks under a later hold."""
    marked_at_ms = summary.marked_at_ms or 0
    waits = summary.delete_state is _MARKED and summary.read_at_ms - marked_at_ms < grace_ms
    return PartitionPlan(
        topic_id_partition=summary.topic_id_partition,
        revision=summary.revision,
        skipped=ON_HOLD if is_on_hold else IN_GRACE if waits else None,
    )


class RemovalPlanner:
    """Plan removals page by page; read each topic's settings once. Not thread-safe."""

    def __init__(self, rlmm: RemoteLogMetadataManager, retrying: Retrying, grace_ms: int) -> None:
        self._rlmm = rlmm
        self._retrying = retrying
        self._grace_ms = grace_ms
        self._holds: dict[UUID, bool] = {}

    def plans(self, topic: str) -> Iterator[PartitionPlan]:
        """Plan the MARKED and STARTED partitions of topics with this name; empty for all."""
        for summary in self._partitions(topic):
            yield plan_removal(summary, self._is_on_hold(summary), self._grace_ms)

    def plan_again(self, topic_id_partition: TopicIdPartition) -> PartitionPlan:
        """Plan one partition as it is now.

        Raises:
            RemoteResourceNotFoundError: it is no longer MARKED or STARTED.
        """
        for plan in self.plans(topic_id_partition.topic):
            if plan.topic_id_partition == topic_id_partition:
                return plan
        raise RemoteResourceNotFoundError(
            f"partition {topic_id_partition} changed since the plan was made: it is no longer "
            "marked for deletion"
        )

    def _partitions(self, topic: str) -> Iterator[PartitionSummary]:
        token = ""
        while True:
            page = self._retrying(
                self._rlmm.list_partitions,
                topic=topic,
                delete_states=(_MARKED, _STARTED),
                page_token=token,
            )
            yield from page.partitions
            token = page.next_page_token
            if not token:
                return

    def _is_on_hold(self, summary: PartitionSummary) -> bool:
        topic_id = summary.topic_id_partition.topic_id
        if topic_id not in self._holds:
            stored = self._retrying(self._rlmm.topic_config, topic_id)
            self._holds[topic_id] = stored.config.hold
        return self._holds[topic_id]
