"""Read RLMM's segments as a Spark data source: columnar, whole partitions per task."""

import json
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from services.api.segment_batches import SegmentScan
from services.common.client_security import SecurityOptions
from spark_jobs.connections import Services
from spark_jobs.spark_schemas import spark_schema
from spark_jobs.sweeps.plan import SCAN_SCHEMA

NAME = "remote_log_segments"


def remote_log_segments(
    spark: SparkSession,
    services: Services,
    topics: Sequence[str] = (),
    shards: int | None = None,
) -> DataFrame:
    """Read every segment that is not DELETE_SEGMENT_FINISHED (SCAN_SCHEMA).

    In each task a partition's rows are adjacent, ascending by start offset, and carry its
    revision.

    Args:
        topics: names of the topics to read; empty for all.
        shards: tasks per topic, or in all; None for the cluster's parallelism.
    """
    spark.dataSource.register(SegmentsDataSource)
    return (
        spark.read.format(NAME)
        .option("rlmm", services.rlmm)
        .option("retry_for_s", str(services.retry_for_s))
        .option("security", json.dumps(services.security.to_environment()))
        .option("topics", json.dumps(list(topics)))
        .option("shards", str(shards or spark.sparkContext.defaultParallelism))
        .load()
    )


class SegmentsDataSource(DataSource):
    """The data source; its options are those of `remote_log_segments`, encoded as JSON."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return spark_schema(SCAN_SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:
        return SegmentsReader(dict(self.options))


class SegmentsReader(DataSourceReader):
    """Read one SegmentScan per task."""

    def __init__(self, options: dict[str, str]) -> None:
        security = SecurityOptions.from_environment(json.loads(options["security"]))
        self._services = Services(options["rlmm"], "", float(options["retry_for_s"]), security)
        self._topics: list[str] = json.loads(options["topics"])
        self._shards = int(options["shards"])

    def partitions(self) -> Sequence[InputPartition]:
        return [
            InputPartition(SegmentScan(shard, self._shards, (), topic))
            for topic in self._topics or [""]
            for shard in range(self._shards)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one scan; one that breaks off fails its task, which Spark runs again."""
        with self._services.connected_rlmm() as rlmm:
            for batch in rlmm.scan_remote_log_segments(partition.value):
                with pa.ipc.open_stream(batch.arrow_ipc) as stream:
                    yield from stream
