"""Define the columns of the records source: those of Spark's kafka source, and two more."""

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from services.api.ids import TopicIdPartition
from services.records.decode import RecordColumns
from spark_jobs.records.options import RecordsOptions

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
RECORDS_SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("headers", ArrayType(_HEADER)),
        StructField("leader_epoch", IntegerType()),
    ]
)
_ARROW_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS_ARROW = pa.list_(pa.field("element", _ARROW_HEADER))
TIMESTAMP_ARROW = pa.timestamp("us", tz="UTC")
RECORDS_ARROW = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", TIMESTAMP_ARROW),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", HEADERS_ARROW),
        pa.field("leader_epoch", pa.int32()),
    ]
)
OFFSETS_SCHEMA = StructType(
    [
        StructField("topic", StringType()),
        StructField("topic_id", StringType()),
        StructField("partition", IntegerType()),
        StructField("from_offset", LongType()),
        StructField("end_offset", LongType()),
        StructField("log_start_offset", LongType()),
        StructField("high_watermark", LongType()),
        StructField("ends_because", StringType()),
    ]
)
LAST_MS = (2**63 - 1) // 1_000


def as_batch(
    columns: RecordColumns, tp: TopicIdPartition, options: RecordsOptions
) -> pa.RecordBatch:
    """Make rows of records, of those only that are within the times of the options.

    A time that Spark cannot hold is null.
    """
    count = len(columns)
    times_ms = pa.array(columns.timestamps_ms, pa.int64())
    fits = pc.and_(pc.greater_equal(times_ms, -LAST_MS), pc.less_equal(times_ms, LAST_MS))
    held = pc.if_else(fits, times_ms, pa.scalar(None, pa.int64()))
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(columns.keys, pa.binary()),
            pa.array(columns.values, pa.binary()),
            pa.repeat(pa.scalar(tp.topic, pa.string()), count),
            pa.repeat(pa.scalar(tp.partition, pa.int32()), count),
            pa.array(columns.offsets, pa.int64()),
            pc.multiply(held, 1_000).cast(TIMESTAMP_ARROW),
            pa.array(columns.timestamp_types, pa.int32()),
            pa.array(columns.headers, HEADERS_ARROW),
            pa.array(columns.leader_epochs, pa.int32()),
        ],
        schema=RECORDS_ARROW,
    )
    if options.from_time_ms is not None:
        kept = pc.greater_equal(times_ms, options.from_time_ms)
        batch, times_ms = batch.filter(kept), times_ms.filter(kept)
    if options.to_time_ms is not None:
        batch = batch.filter(pc.less_equal(times_ms, options.to_time_ms))
    return batch
