"""The columns that travel through Spark; each stage of a sweep adds to those of the one before."""

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
"""services.api.segment_scan.SCAN_COLUMNS, as Spark says it."""

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
"""The frozen plan: of each partition a row of kind PARTITION, then one of kind SEGMENT for each
segment to delete, in the order of `position`. A column that is not of a row's kind is null, but
those that name the partition. `plan_id` is that of the earlier sweep that has marked a segment."""

MARKED, REFUSED, FAILED, DELETED, PLANNED = "MARKED", "REFUSED", "FAILED", "DELETED", "PLANNED"
_OUTCOME_FIELDS = [StructField("outcome", StringType()), StructField("error", StringType())]
MARKED_SCHEMA = StructType([*PLAN_SCHEMA.fields, *_OUTCOME_FIELDS])
"""The plan, and what RLMM said to each row: MARKED, or REFUSED or FAILED and why."""

DELETED_SCHEMA = StructType([StructField("segment_id", StringType()), *_OUTCOME_FIELDS])
"""What became of each marked segment: DELETED or FAILED."""

FINISHED_SCHEMA = StructType(
    [
        StructField("topic_id", StringType()),
        StructField("partition", IntegerType()),
        *_OUTCOME_FIELDS,
    ]
)
"""What became of each partition after its segments: DELETED or FAILED."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """For the batches that a task of Python gives back to Spark."""
    return to_arrow_schema(schema)
