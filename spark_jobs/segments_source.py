"""Read RLMM's segments as a frame: columnar, whole partitions per task."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from services.api.segment_batches import SegmentScan
from spark_jobs.connections import Services
from spark_jobs.spark_schemas import spark_schema
from spark_jobs.sweeps.plan import SCAN_SCHEMA, rows_in

_SCANS = pa.schema({"topic": pa.string(), "shard": pa.int32(), "shards": pa.int32()})


def remote_log_segments(
    spark: SparkSession,
    services: Services,
    topics: Sequence[str] = (),
    shards: int | None = None,
) -> DataFrame:
    """Read every segment that is not DELETE_SEGMENT_FINISHED (SCAN_SCHEMA), when the frame is read.

    In each task a partition's rows are adjacent, ascending by start offset, and carry its
    revision.

    Args:
        topics: names of the topics to read; empty for all.
        shards: tasks per topic, or in all; None for the cluster's parallelism.
    """
    count = shards or spark.sparkContext.defaultParallelism
    scans = [(topic, shard, count) for topic in topics or [""] for shard in range(count)]
    spread = spark.sparkContext.parallelize(scans, len(scans))
    frame = spark.createDataFrame(spread, spark_schema(_SCANS))
    return frame.mapInArrow(partial(_scanned, services=services), spark_schema(SCAN_SCHEMA))


def _scanned(batches: Iterable[pa.RecordBatch], services: Services) -> Iterator[pa.RecordBatch]:
    """Read scans; one that breaks off fails its task, which Spark runs again."""
    with services.connected_rlmm() as rlmm:
        for row in rows_in(batches):
            scan = SegmentScan(row["shard"], row["shards"], (), row["topic"])
            for batch in rlmm.scan_remote_log_segments(scan):
                with pa.ipc.open_stream(batch.arrow_ipc) as stream:
                    yield from stream
