"""Keep exported records, and how far they reach, in one Delta table: both in the same commit."""

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from spark_jobs.records.schema import RECORDS_SCHEMA

TABLE_SCHEMA = StructType([*RECORDS_SCHEMA.fields, StructField("topic_id", StringType())])
_FORMAT = "delta"


class ExportTable:
    """The table of an export.

    Delta stores one number for each application id, which a commit may raise together with data.
    That number is the next offset of a partition.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._path = path

    def create(self) -> None:
        """Create the table, empty, unless it is there."""
        empty = self._spark.createDataFrame([], TABLE_SCHEMA)
        empty.write.format(_FORMAT).mode("ignore").save(self._path)

    def position(self, application_id: str) -> int | None:
        """Return the next offset by the latest commit; None if there is none."""
        jvm: Any = self._spark.sparkContext._jvm
        hadoop = jvm.org.apache.spark.SparkContext.getOrCreate().hadoopConfiguration()
        engine = jvm.io.delta.kernel.defaults.engine.DefaultEngine.create(hadoop)
        snapshot = jvm.io.delta.kernel.Table.forPath(engine, self._path).getLatestSnapshot(engine)
        version = snapshot.getLatestTransactionVersion(engine, application_id)
        return int(version.get()) if version.isPresent() else None

    def commit(self, rows: DataFrame, application_id: str, scope: str, next_offset: int) -> None:
        """Write rows and the next offset in one commit; nothing if the table is as far already.

        Args:
            scope: a condition that all of these rows meet and no others. Rows that meet it already
                are replaced: another export may have written them since the position was read.
        """
        writer = rows.write.format(_FORMAT).mode("overwrite").option("replaceWhere", scope)
        writer = writer.option("txnAppId", application_id).option("txnVersion", str(next_offset))
        writer.save(self._path)
