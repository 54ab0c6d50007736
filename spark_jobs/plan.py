"""Represent the plan of a sweep as objects and as rows, and define the schemas."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.retention import Deletion, DeletionReason
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    segment_leader_epochs,
)

_PARTITION_FIELDS = [
    StructField("topic_id", StringType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("revision", LongType()),
]

_SEGMENT_FIELDS = [
    StructField("segment_id", StringType()),
    StructField("start_offset", LongType()),
    StructField("end_offset", LongType()),
    StructField("max_timestamp_ms", LongType()),
    StructField("broker_id", IntegerType()),
    StructField("broker_leader_epoch", IntegerType()),
    StructField("event_timestamp_ms", LongType()),
    StructField("leader_epochs", ArrayType(IntegerType())),
    StructField("epoch_start_offsets", ArrayType(LongType())),
    StructField("segment_size_in_bytes", IntegerType()),
    StructField("custom_metadata", BinaryType()),
    StructField("state", StringType()),
    StructField("txn_idx_empty", BooleanType()),
    StructField("plan_id", StringType()),
    StructField("copy_leased", BooleanType()),
]

SCAN_SCHEMA = StructType(
    [*_PARTITION_FIELDS, StructField("delete_state", StringType()), *_SEGMENT_FIELDS]
)
"""services.api.segment_batches.SCAN_COLUMNS as a Spark schema."""

PARTITION, SEGMENT = "PARTITION", "SEGMENT"

PLAN_SCHEMA = StructType(
    [
        StructField("kind", StringType()),
        *_PARTITION_FIELDS,
        StructField("config_revision", LongType()),
        StructField("log_start_offset", LongType()),
        StructField("skipped", StringType()),
        StructField("notes", ArrayType(StringType())),
        StructField("position", IntegerType()),
        StructField("reason", StringType()),
        StructField("detail", StringType()),
        *_SEGMENT_FIELDS,
    ]
)
"""The frozen plan: per partition one row of kind PARTITION, then one of kind SEGMENT for each
segment to delete, ordered by `position`. Every row names its partition; other columns
that do not belong to its kind are null. `plan_id` is that of an earlier sweep that already marked
the segment."""

MARKED, REFUSED, FAILED, DELETED, PLANNED = "MARKED", "REFUSED", "FAILED", "DELETED", "PLANNED"
_OUTCOME_FIELDS = [StructField("outcome", StringType()), StructField("error", StringType())]

MARKED_SCHEMA = StructType([*PLAN_SCHEMA.fields, *_OUTCOME_FIELDS])
"""The plan with RLMM's response to each row: MARKED; or REFUSED or FAILED, with the error."""

DELETED_SCHEMA = StructType([StructField("segment_id", StringType()), *_OUTCOME_FIELDS])
"""The outcome of each marked segment: DELETED or FAILED."""

FINISHED_SCHEMA = StructType(
    [
        StructField("topic_id", StringType()),
        StructField("partition", IntegerType()),
        *_OUTCOME_FIELDS,
    ]
)
"""The outcome of each partition after its segments: DELETED or FAILED."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of the batches that a Python task returns to Spark."""
    return to_arrow_schema(schema)


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
    """

    topic_id_partition: TopicIdPartition
    revision: int
    config_revision: int | None = None
    log_start_offset: int | None = None
    skipped: str | None = None
    notes: tuple[str, ...] = ()
    deletions: tuple[Deletion, ...] = ()
    earlier_plans: Mapping[UUID, str] = field(default_factory=dict)


def rows_of(plan: PartitionPlan) -> Iterator[Row]:
    """Turn a plan into rows: one of kind PARTITION, then its segments."""
    name = _name_columns(plan)
    yield {
        **name,
        "kind": PARTITION,
        "config_revision": plan.config_revision,
        "log_start_offset": plan.log_start_offset,
        "skipped": plan.skipped,
        "notes": list(plan.notes),
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


def plans_of(rows: Iterable[Row]) -> Iterator[PartitionPlan]:
    """Turn rows into plans; a partition's rows must be adjacent, in the order of `rows_of`."""
    for _, of_partition in groupby(rows, key=partition_key):
        head, *segments = of_partition
        yield PartitionPlan(
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


def partition_key(row: Row) -> tuple[str, int]:
    """Return a key that the rows of one partition share."""
    return row["topic_id"], row["partition"]


def topic_id_partition_of(row: Row) -> TopicIdPartition:
    return TopicIdPartition(UUID(row["topic_id"]), row["topic"], row["partition"])


def segment_of(row: Row) -> RemoteLogSegmentMetadata:
    """Build the segment of a row of a scan or a plan."""
    epochs = list(zip(row["leader_epochs"], row["epoch_start_offsets"], strict=True))
    return RemoteLogSegmentMetadata(
        remote_log_segment_id=RemoteLogSegmentId(
            topic_id_partition_of(row), UUID(row["segment_id"])
        ),
        start_offset=row["start_offset"],
        end_offset=row["end_offset"],
        max_timestamp_ms=row["max_timestamp_ms"],
        broker_id=row["broker_id"],
        event_timestamp_ms=row["event_timestamp_ms"],
        segment_leader_epochs=segment_leader_epochs(epochs),
        segment_size_in_bytes=row["segment_size_in_bytes"],
        custom_metadata=row["custom_metadata"],
        state=RemoteLogSegmentState[row["state"]],
        txn_idx_empty=row["txn_idx_empty"],
        broker_leader_epoch=row["broker_leader_epoch"],
        # Null or absent: RLMM's release has no leases.
        copy_leased=bool(row.get("copy_leased")),
    )


def segment_columns(segment: RemoteLogSegmentMetadata) -> Row:
    """Return the columns of a segment: the inverse of `segment_of`.

    The partition's columns are not included.
    """
    return {
        "segment_id": str(segment.remote_log_segment_id.id),
        "start_offset": segment.start_offset,
        "end_offset": segment.end_offset,
        "max_timestamp_ms": segment.max_timestamp_ms,
        "broker_id": segment.broker_id,
        "broker_leader_epoch": segment.broker_leader_epoch,
        "event_timestamp_ms": segment.event_timestamp_ms,
        "leader_epochs": [epoch.leader_epoch for epoch in segment.segment_leader_epochs],
        "epoch_start_offsets": [epoch.start_offset for epoch in segment.segment_leader_epochs],
        "segment_size_in_bytes": segment.segment_size_in_bytes,
        "custom_metadata": segment.custom_metadata,
        "state": segment.state.name,
        "txn_idx_empty": segment.txn_idx_empty,
        "copy_leased": segment.copy_leased,
    }


def rows_in(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """Read the rows of a task's input, one batch in memory at a time."""
    for batch in batches:
        yield from batch.to_pylist()


def batches_of(rows: Iterable[Row], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Batch the rows of a task's output; a column that a row lacks is null."""
    rest, columns = iter(rows), arrow_schema(schema)
    while some := list(islice(rest, ROWS_PER_BATCH)):
        yield pa.RecordBatch.from_pylist(some, schema=columns)


def _name_columns(plan: PartitionPlan) -> Row:
    tp = plan.topic_id_partition
    return {
        "topic_id": str(tp.topic_id),
        "topic": tp.topic,
        "partition": tp.partition,
        "revision": plan.revision,
    }
