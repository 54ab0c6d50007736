"""Define the columns of the records source: those of Spark's kafka source, and two more."""

import pyarrow as pa
import pyarrow.compute as pc

from services.api.ids import TopicIdPartition
from services.records.decode import RecordColumns
from spark_jobs.records.options import RecordsOptions
from spark_jobs.spark_schemas import spark_schema
from spark_jobs.tables.columns import INT, LAST_MS, LONG, STRING, TIMESTAMP

_HEADER = pa.struct({"key": STRING, "value": pa.binary()})
HEADERS = pa.list_(pa.field("element", _HEADER))
RECORDS_ARROW = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": STRING,
        "partition": INT,
        "offset": LONG,
        "timestamp": TIMESTAMP,
        "timestampType": INT,
        "headers": HEADERS,
        "leader_epoch": INT,
    }
)
RECORDS_SCHEMA = spark_schema(RECORDS_ARROW)
OFFSETS_SCHEMA = spark_schema(
    pa.schema(
        {
            "topic": STRING,
            "topic_id": STRING,
            "partition": INT,
            "from_offset": LONG,
            "end_offset": LONG,
            "log_start_offset": LONG,
            "high_watermark": LONG,
            "ends_because": STRING,
        }
    )
)


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
            pc.multiply(held, 1_000).cast(TIMESTAMP),
            pa.array(columns.timestamp_types, pa.int32()),
            pa.array(columns.headers, HEADERS),
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
