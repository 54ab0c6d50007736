"""Represent the plan of a sweep as objects and as rows, and define the schemas, in Arrow."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby, islice
from typing import Any
from uuid import UUID

import pyarrow as pa

from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.retention import Deletion, DeletionReason
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    segment_leader_epochs,
)

_PARTITION_FIELDS = [
    pa.field("topic_id", pa.string()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("revision", pa.int64()),
]

_SEGMENT_FIELDS = [
    pa.field("segment_id", pa.string()),
    pa.field("start_offset", pa.int64()),
    pa.field("end_offset", pa.int64()),
    pa.field("max_timestamp_ms", pa.int64()),
    pa.field("broker_id", pa.int32()),
    pa.field("broker_leader_epoch", pa.int32()),
    pa.field("event_timestamp_ms", pa.int64()),
    pa.field("leader_epochs", pa.list_(pa.int32())),
    pa.field("epoch_start_offsets", pa.list_(pa.int64())),
    pa.field("segment_size_in_bytes", pa.int32()),
    pa.field("custom_metadata", pa.binary()),
    pa.field("state", pa.string()),
    pa.field("txn_idx_empty", pa.bool_()),
    pa.field("plan_id", pa.string()),
    pa.field("copy_leased", pa.bool_()),
    pa.field("kept_until_ms", pa.int64()),
]

_OTHERS = ("segment_id", "leader_epochs", "epoch_start_offsets", "state", "plan_id")
_SAME = tuple(each.name for each in _SEGMENT_FIELDS if each.name not in _OTHERS)
"""The columns that are fields of RemoteLogSegmentMetadata, as they are."""

SCAN_SCHEMA = pa.schema(
    [*_PARTITION_FIELDS, pa.field("delete_state", pa.string()), *_SEGMENT_FIELDS]
)
"""services.api.segment_batches.SCAN_COLUMNS in Arrow."""

PARTITION, SEGMENT = "PARTITION", "SEGMENT"

PLAN_SCHEMA = pa.schema(
    [
        pa.field("kind", pa.string()),
        *_PARTITION_FIELDS,
        pa.field("config_revision", pa.int64()),
        pa.field("log_start_offset", pa.int64()),
        pa.field("skipped", pa.string()),
        pa.field("notes", pa.list_(pa.string())),
        pa.field("planned_segments", pa.int64()),
        pa.field("planned_bytes", pa.int64()),
        pa.field("new_segments", pa.int64()),
        pa.field("new_bytes", pa.int64()),
        pa.field("tier_segments", pa.int64()),
        pa.field("tier_bytes", pa.int64()),
        pa.field("position", pa.int32()),
        pa.field("reason", pa.string()),
        pa.field("detail", pa.string()),
        *_SEGMENT_FIELDS,
    ]
)
"""The frozen plan: per partition one row of kind PARTITION, then one of kind SEGMENT for each
segment to delete, ordered by `position`. Every row names its partition; other columns
that do not belong to its kind are null. `plan_id` is that of an earlier sweep that already marked
the segment. `planned_*` count the rows of the partition, `new_*` those that no earlier run has
marked, `tier_*` what the tier has of the partition."""

MARKED, REFUSED, FAILED, DELETED, PLANNED = "MARKED", "REFUSED", "FAILED", "DELETED", "PLANNED"
DELETED_BY_ANOTHER = "DELETED_BY_ANOTHER"
_OUTCOME_FIELDS = [pa.field("outcome", pa.string()), pa.field("error", pa.string())]

MARKED_SCHEMA = pa.schema([*PLAN_SCHEMA, *_OUTCOME_FIELDS])
"""The plan with the outcome of each row: MARKED; REFUSED, which another run would not change; or
FAILED, which another run may change. The latter two have the error."""

DELETED_SCHEMA = pa.schema([pa.field("segment_id", pa.string()), *_OUTCOME_FIELDS])
"""The outcome of each marked segment: DELETED, DELETED_BY_ANOTHER plan or deleter, or FAILED."""

FINISHED_SCHEMA = pa.schema(
    [
        pa.field("topic_id", pa.string()),
        pa.field("partition", pa.int32()),
        *_OUTCOME_FIELDS,
    ]
)
"""The outcome of each partition after its segments: DELETED or FAILED."""

SCANS_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("shard", pa.int32()),
        pa.field("shards", pa.int32()),
        pa.field("states", pa.list_(pa.string())),
        pa.field("except_topics", pa.list_(pa.string())),
    ]
)
"""The scans of RLMM to plan from, each a SegmentScan without the topics of `except_topics`."""

REMOVALS_SCHEMA = pa.schema(
    [
        *_PARTITION_FIELDS,
        pa.field("delete_state", pa.string()),
        pa.field("marked_at_ms", pa.int64()),
        pa.field("read_at_ms", pa.int64()),
        pa.field("is_on_hold", pa.bool_()),
    ]
)
"""The partitions that are being deleted, each a PartitionSummary."""

ROWS_PER_BATCH = 1_000

Row = dict[str, Any]
"""A row of Arrow or Spark, by column name."""


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The planned deletions of one partition and the revisions they were decided at.

    Attributes:
        revision: the partition's, at which `deletions` holds.
        config_revision: of its topic's settings; None if they do not matter.
        log_start_offset: raise the tier's to this before deleting; None to keep it.
        skipped: why nothing new of the partition is deleted; None if it is not skipped.
        earlier_plans: plan ids of the segments that an earlier sweep has marked.
        tier_segments, tier_bytes: what the tier has of the partition.
    """

    topic_id_partition: TopicIdPartition
    revision: int
    config_revision: int | None = None
    log_start_offset: int | None = None
    skipped: str | None = None
    notes: tuple[str, ...] = ()
    deletions: tuple[Deletion, ...] = ()
    earlier_plans: Mapping[UUID, str] = field(default_factory=dict)
    tier_segments: int = 0
    tier_bytes: int = 0


def rows_of(plan: PartitionPlan) -> Iterator[Row]:
    """Turn a plan into rows: one of kind PARTITION, then its segments."""
    name = _name_columns(plan)
    new = [d for d in plan.deletions if d.reason is not DeletionReason.DELETION_NOT_FINISHED]
    yield {
        **name,
        "kind": PARTITION,
        "config_revision": plan.config_revision,
        "log_start_offset": plan.log_start_offset,
        "skipped": plan.skipped,
        "notes": list(plan.notes),
        "planned_segments": len(plan.deletions),
        "planned_bytes": sum(size_bytes(d.segment) for d in plan.deletions),
        "new_segments": len(new),
        "new_bytes": sum(size_bytes(d.segment) for d in new),
        "tier_segments": plan.tier_segments,
        "tier_bytes": plan.tier_bytes,
    }
    for position, deletion in enumerate(plan.deletions):
        yield {
            **name,
            "kind": SEGMENT,
            "position": position,
            "reason": deletion.reason.name,
            "detail": deletion.detail,
            "plan_id": plan.earlier_plans.get(deletion.segment.remote_log_segment_id.id),
            **segment_columns(deletion.segment),
        }


def size_bytes(segment: RemoteLogSegmentMetadata) -> int:
    """Return a segment's size, or 0 if it is unknown."""
    return max(segment.segment_size_in_bytes, 0)


def plans_of(rows: Iterable[Row]) -> Iterator[PartitionPlan]:
    """Turn rows into plans; a partition's rows must be adjacent, in the order of `rows_of`.

    A part of a partition's segments raises the log start only as far as it deletes.
    """
    for _, of_partition in groupby(rows, key=partition_key):
        head, *segments = of_partition
        whole = PartitionPlan(
            topic_id_partition=topic_id_partition_of(head),
            revision=head["revision"],
            config_revision=head["config_revision"],
            log_start_offset=head["log_start_offset"],
            skipped=head["skipped"],
            notes=tuple(head["notes"]),
            deletions=tuple(
                Deletion(segment_of(row), DeletionReason[row["reason"]], row["detail"])
                for row in segments
            ),
            earlier_plans={
                UUID(row["segment_id"]): row["plan_id"] for row in segments if row["plan_id"]
            },
        )
        is_part = len(segments) < head["planned_segments"]
        yield narrowed(whole, {UUID(row["segment_id"]) for row in segments}) if is_part else whole


_RAISES_LOG_START = (DeletionReason.RETENTION_TIME, DeletionReason.RETENTION_SIZE)


def narrowed(plan: PartitionPlan, to: Collection[UUID]) -> PartitionPlan:
    """Keep the deletions of these segments and the rise of the log start that they need."""
    deletions = tuple(d for d in plan.deletions if d.segment.remote_log_segment_id.id in to)
    ends = [d.segment.end_offset + 1 for d in deletions if d.reason in _RAISES_LOG_START]
    return replace(plan, deletions=deletions, log_start_offset=max(ends, default=None))


def partition_key(row: Row) -> tuple[str, int]:
    """Return a key that the rows of one partition share."""
    return row["topic_id"], row["partition"]


def topic_id_partition_of(row: Row) -> TopicIdPartition:
    return _topic_id_partition(row["topic_id"], row["topic"], row["partition"])


@lru_cache(maxsize=1_000)
def _topic_id_partition(topic_id: str, topic: str, partition: int) -> TopicIdPartition:
    """Make the id of a partition once for the rows of all its segments."""
    return TopicIdPartition(UUID(topic_id), topic, partition)


def segment_of(row: Row) -> RemoteLogSegmentMetadata:
    """Build the segment of a row of a scan or a plan."""
    epochs = list(zip(row["leader_epochs"], row["epoch_start_offsets"], strict=True))
    return RemoteLogSegmentMetadata(
        remote_log_segment_id=RemoteLogSegmentId(
            topic_id_partition_of(row), UUID(row["segment_id"])
        ),
        segment_leader_epochs=segment_leader_epochs(epochs),
        state=RemoteLogSegmentState[row["state"]],
        **{name: row[name] for name in _SAME},
    )


def segment_columns(segment: RemoteLogSegmentMetadata) -> Row:
    """Return the columns of a segment: the inverse of `segment_of`.

    The partition's columns are not included.
    """
    return {
        "segment_id": str(segment.remote_log_segment_id.id),
        "leader_epochs": [epoch.leader_epoch for epoch in segment.segment_leader_epochs],
        "epoch_start_offsets": [epoch.start_offset for epoch in segment.segment_leader_epochs],
        "state": segment.state.name,
        **{name: getattr(segment, name) for name in _SAME},
    }


def rows_in(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """Read the rows of a task's input, one batch in memory at a time."""
    for batch in batches:
        yield from batch.to_pylist()


def batches_of(rows: Iterable[Row], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Batch the rows of a task's output; a column that a row lacks is null."""
    rest = iter(rows)
    while some := list(islice(rest, ROWS_PER_BATCH)):
        yield pa.RecordBatch.from_pylist(some, schema=schema)


def _name_columns(plan: PartitionPlan) -> Row:
    tp = plan.topic_id_partition
    return {
        "topic_id": str(tp.topic_id),
        "topic": tp.topic,
        "partition": tp.partition,
        "revision": plan.revision,
    }
