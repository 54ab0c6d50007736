"""Plan the retention or the removal of partitions from RLMM's data."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from uuid import UUID

import pyarrow as pa

from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition
from services.api.partitions import RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import (
    PartitionSummary,
    RemoteLogMetadataManager,
    all_partitions,
    all_segments,
)
from services.api.retention import (
    Deletion,
    DeletionReason,
    RetentionPlan,
    plan_retention,
    young_copies,
)
from services.api.segment_batches import MAX_SHARDS, SegmentScan
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.topic_config import RetentionOwner, StoredTopicConfig, TopicConfig
from services.workflows.removal import removal_of
from spark_jobs.connections import Services
from spark_jobs.sweeps.budget import Size
from spark_jobs.sweeps.plan import (
    PLAN_SCHEMA,
    REMOVALS_SCHEMA,
    SCANS_SCHEMA,
    PartitionPlan,
    Row,
    batches_of,
    partition_key,
    rows_in,
    rows_of,
    segment_of,
    size_bytes,
    topic_id_partition_of,
)
from spark_jobs.sweeps.stages import SEGMENTS_PER_TASK
from spark_jobs.sweeps.waves import Key

BEING_DELETED = "the partition is being deleted; `sediment sweep removal` removes it"
GONE = "the partition was removed since the scan"
NO_OWNER = "sediment.retention.owner is not set, so RLM applies retention; set it to sweep"
ON_HOLD = "on hold; `sediment holds` names the hold"
NO_REPORT = "no leader has reported yet"
IN_GRACE = "marked for deletion, within the grace period"
_DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
_MARKED = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
_BEING_DELETED = (_MARKED, RemotePartitionDeleteState.DELETE_PARTITION_STARTED)
PARTITIONS_PER_TASK = 1_000
"""A task plans no more, however small they are: each costs it a call to RLMM."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What a retention sweep scans, and which partitions it skips unread.

    Attributes:
        scans: SCANS_SCHEMA.
        tasks: that share them.
        skipped: by topic, topic id and number, why.
        segments: of the partitions that are not skipped.
    """

    scans: pa.Table
    tasks: int
    skipped: Mapping[Key, str]
    segments: int


def retention_scope(
    rlmm: RemoteLogMetadataManager, topics: Sequence[str], parallelism: int
) -> Scope:
    """Read each topic's settings once, and scan only topics that sweeps own.

    Of the others only what is marked already is scanned.
    """
    sizes, skipped = dict[str, list[int]](), dict[Key, str]()
    reasons: dict[UUID, str | None] = {}
    for name in topics or [""]:
        for summary in all_partitions(rlmm, topic=name):
            tp = summary.topic_id_partition
            if tp.topic_id not in reasons:
                config = rlmm.topic_config(tp.topic_id).config
                reasons[tp.topic_id] = why_skipped(config)
            why = reasons[tp.topic_id]
            if why is None:
                sizes.setdefault(tp.topic, []).append(_live_segments(summary))
            else:
                skipped[tp.topic, str(tp.topic_id), tp.partition] = why
    rows: list[Row] = []
    for name, of_topic in sorted(sizes.items(), key=lambda each: -sum(each[1])):
        shards = min(len(of_topic), tasks_for(of_topic, parallelism), MAX_SHARDS)
        rows += (_scan(name, shard, shards) for shard in range(shards))
    others = sorted({topic for topic, _, _ in skipped if topic not in sizes}) if topics else [""]
    rows += (_scan(name, 0, 1, [_DELETING.name], sorted(sizes)) for name in others)
    every = list(chain.from_iterable(sizes.values()))
    tasks = min(tasks_for(every, parallelism), len(rows) or 1)
    return Scope(pa.Table.from_pylist(dealt(rows, tasks), SCANS_SCHEMA), tasks, skipped, sum(every))


def _live_segments(summary: PartitionSummary) -> int:
    return summary.totals.live_segments


def tasks_for(sizes: Sequence[int], parallelism: int) -> int:
    """Return how many tasks plan partitions of so many segments, so that none has too much."""
    by_segments = -(-sum(sizes) // SEGMENTS_PER_TASK)
    return max(2 * parallelism, by_segments, -(-len(sizes) // PARTITIONS_PER_TASK))


def dealt(rows: Sequence[Row], tasks: int) -> list[Row]:
    """Order rows, of which the largest are first, so that each task gets large and small ones.

    Tasks get consecutive rows, equally many.
    """
    return [row for task in range(tasks) for row in rows[task::tasks]]


def _scan(
    topic: str, shard: int, shards: int, states: Sequence[str] = (), left_out: Sequence[str] = ()
) -> Row:
    return {
        "topic": topic,
        "shard": shard,
        "shards": shards,
        "states": list(states),
        "except_topics": list(left_out),
    }


def plan_scans(
    batches: Iterable[pa.RecordBatch], services: Services, copy_grace_ms: int
) -> Iterator[pa.RecordBatch]:
    """Scan RLMM and plan the partitions that are found: SCANS_SCHEMA to PLAN_SCHEMA.

    Holds one partition's segments in memory at a time. Retries only the beginning of a scan: rows
    that were yielded cannot be taken back, so a scan that breaks later fails its task.
    """
    with services.connected_rlmm() as rlmm:
        planner = RetentionPlanner(rlmm, copy_grace_ms)
        plans = (
            planner.plan_rows(rows)
            for row in rows_in(batches)
            for _, rows in groupby(_scanned(rlmm, row), key=partition_key)
        )
        yield from batches_of(chain.from_iterable(map(rows_of, plans)), PLAN_SCHEMA)


def _scanned(rlmm: RemoteLogMetadataManager, row: Row) -> Iterator[Row]:
    states = tuple(RemoteLogSegmentState[name] for name in row["states"])
    left_out = frozenset(row["except_topics"])
    for batch in rlmm.scan_remote_log_segments(
        SegmentScan(row["shard"], row["shards"], states, row["topic"])
    ):
        with pa.ipc.open_stream(batch.arrow_ipc) as stream:
            yield from (each for each in rows_in(stream) if each["topic"] not in left_out)


class RetentionPlanner:
    """Plan retention per partition; read each topic's settings once. Not thread-safe."""

    def __init__(self, rlmm: RemoteLogMetadataManager, copy_grace_ms: int) -> None:
        """Treat a COPY_SEGMENT_STARTED younger than `copy_grace_ms` as being copied."""
        self._rlmm = rlmm
        self._copy_grace_ms = copy_grace_ms
        self._configs: dict[UUID, StoredTopicConfig] = {}

    def plan_rows(self, rows: Iterator[Row]) -> PartitionPlan:
        """Plan one partition from its rows of a scan, at least one."""
        first = next(rows)
        tp, revision = topic_id_partition_of(first), first["revision"]
        try:
            config = self._config(tp.topic_id)
            skipped = BEING_DELETED if first["delete_state"] else why_skipped(config.config)
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
            now_ms = self._rlmm.partition_state(tp).value.read_at_ms
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
        # Read before the segments: if they show a newer revision, RLMM refuses the marks.
        revision = self._rlmm.partition_state(tp).revision
        skipped = why_skipped(config.config)
        if skipped is not None:
            return PartitionPlan(tp, revision, config.revision, skipped=skipped)
        segments = list(all_segments(self._rlmm, tp))
        return self._plan(tp, revision, config, segments, {})

    def _plan(
        self,
        tp: TopicIdPartition,
        revision: int,
        config: StoredTopicConfig,
        segments: Sequence[RemoteLogSegmentMetadata],
        earlier: Mapping[UUID, str],
    ) -> PartitionPlan:
        state = self._rlmm.partition_state(tp).value
        young = young_copies(segments, state.read_at_ms, self._copy_grace_ms)
        being_copied = {segment.remote_log_segment_id.id for segment in young}
        made = plan_retention(
            segments,
            state,
            config.config,
            config.earlier_config,
            being_copied=being_copied,
            now_ms=state.read_at_ms,
        )
        return PartitionPlan(
            topic_id_partition=tp,
            revision=revision,
            config_revision=config.revision,
            log_start_offset=made.log_start_offset,
            skipped=NO_REPORT if state.report is None else None,
            notes=(*made.notes, *_waiting(made)),
            deletions=made.deletions,
            earlier_plans=earlier,
            tier_segments=len(segments),
            tier_bytes=sum(map(size_bytes, segments)),
        )

    def _config(self, topic_id: UUID) -> StoredTopicConfig:
        if topic_id not in self._configs:
            self._configs[topic_id] = self._rlmm.topic_config(topic_id)
        return self._configs[topic_id]


def _waiting(plan: RetentionPlan) -> Iterator[str]:
    if plan.waiting:
        yield (
            f"{len(plan.waiting)} segments wait that only changed settings delete; "
            "`sediment retention` shows until when"
        )


def why_skipped(config: TopicConfig) -> str | None:
    """Explain why a sweep skips a topic; None if it does not."""
    if config.retention_owner is None:
        return NO_OWNER
    if config.retention_owner is not RetentionOwner.SWEEP:
        return f"sediment.retention.owner is {config.retention_owner.value}"
    return None


def _segments_and_plan_ids(
    rows: Iterable[Row],
) -> tuple[list[RemoteLogSegmentMetadata], dict[UUID, str]]:
    segments: list[RemoteLogSegmentMetadata] = []
    plan_ids: dict[UUID, str] = {}
    for row in rows:
        segment = segment_of(row)
        segments.append(segment)
        if row.get("plan_id") is not None:
            plan_ids[segment.remote_log_segment_id.id] = row["plan_id"]
    return segments, plan_ids


@dataclass(frozen=True, slots=True)
class Removals:
    """What a removal sweep plans.

    Attributes:
        partitions: REMOVALS_SCHEMA.
        tasks: that share them.
        segments: of all of them.
    """

    partitions: pa.Table
    tasks: int
    segments: int


def deleted_partitions(
    rlmm: RemoteLogMetadataManager, topics: Sequence[str], parallelism: int
) -> Removals:
    """List the partitions that are MARKED or STARTED."""
    summaries = [
        each
        for topic in topics or [""]
        for each in all_partitions(rlmm, topic=topic, delete_states=_BEING_DELETED)
    ]
    summaries.sort(key=_live_segments, reverse=True)
    sizes = [_live_segments(each) for each in summaries]
    rows = [
        {
            "topic_id": str(each.topic_id_partition.topic_id),
            "topic": each.topic_id_partition.topic,
            "partition": each.topic_id_partition.partition,
            "revision": each.revision,
            "delete_state": None if each.delete_state is None else each.delete_state.name,
            "marked_at_ms": each.marked_at_ms,
            "read_at_ms": each.read_at_ms,
            "is_on_hold": each.is_on_hold,
        }
        for each in summaries
    ]
    tasks = tasks_for(sizes, parallelism)
    return Removals(pa.Table.from_pylist(dealt(rows, tasks), REMOVALS_SCHEMA), tasks, sum(sizes))


def topic_sizes(rlmm: RemoteLogMetadataManager, topics: Sequence[str]) -> dict[Key, Size]:
    """Return the sizes of all partitions of topics."""
    return {
        (tp.topic, str(tp.topic_id), tp.partition): (totals.live_segments, totals.live_bytes)
        for topic in topics or [""]
        for each in all_partitions(rlmm, topic=topic)
        for tp, totals in [(each.topic_id_partition, each.totals)]
    }


def summary_of(row: Row) -> PartitionSummary:
    """Build the summary of a row of deleted_partitions."""
    return PartitionSummary(
        topic_id_partition_of(row),
        RemotePartitionDeleteState[row["delete_state"]],
        row["revision"],
        row["marked_at_ms"],
        row["read_at_ms"],
        is_on_hold=row["is_on_hold"],
    )


def plan_removals(
    batches: Iterable[pa.RecordBatch], services: Services, grace_ms: int
) -> Iterator[pa.RecordBatch]:
    """Plan the removal of deleted partitions: REMOVALS_SCHEMA to PLAN_SCHEMA.

    Holds one partition's segments in memory at a time.
    """
    with services.connected_rlmm() as rlmm:
        planner = RemovalPlanner(rlmm, grace_ms)
        plans = (planner.plan_with_segments(summary_of(row)) for row in rows_in(batches))
        yield from batches_of(chain.from_iterable(map(rows_of, plans)), PLAN_SCHEMA)


def plan_removal(summary: PartitionSummary, grace_ms: int) -> PartitionPlan:
    """Plan a MARKED or STARTED partition; RLMM refuses the marks under a later hold."""
    marked_at_ms = summary.marked_at_ms or 0
    waits = summary.delete_state is _MARKED and summary.read_at_ms - marked_at_ms < grace_ms
    return PartitionPlan(
        topic_id_partition=summary.topic_id_partition,
        revision=summary.revision,
        skipped=ON_HOLD if summary.is_on_hold else IN_GRACE if waits else None,
    )


class RemovalPlanner:
    """Plan removals page by page."""

    def __init__(self, rlmm: RemoteLogMetadataManager, grace_ms: int) -> None:
        self._rlmm = rlmm
        self._grace_ms = grace_ms

    def plans(self, topic: str) -> Iterator[PartitionPlan]:
        """Plan the MARKED and STARTED partitions of topics with this name; empty for all."""
        for summary in all_partitions(self._rlmm, topic=topic, delete_states=_BEING_DELETED):
            yield plan_removal(summary, self._grace_ms)

    def plan_with_segments(self, summary: PartitionSummary) -> PartitionPlan:
        """Plan a MARKED or STARTED partition and all its segments."""
        plan = plan_removal(summary, self._grace_ms)
        tp = plan.topic_id_partition
        if plan.skipped is not None:
            return plan
        try:
            segments = list(all_segments(self._rlmm, tp))
        except RemoteResourceNotFoundError:
            return replace(plan, skipped=GONE)
        return replace(
            plan,
            deletions=tuple(map(_removal_or_rest, segments)),
            tier_segments=len(segments),
            tier_bytes=sum(map(size_bytes, segments)),
        )

    def plan_again(self, topic_id_partition: TopicIdPartition) -> PartitionPlan:
        """Plan one partition as it is now, without its segments.

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


def _removal_or_rest(segment: RemoteLogSegmentMetadata) -> Deletion:
    if segment.state is _DELETING:
        return Deletion(segment, DeletionReason.DELETION_NOT_FINISHED, "")
    return removal_of(segment)
