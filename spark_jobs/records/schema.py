"""Define the columns of the records source: those of Spark's kafka source, and one more."""

import pyarrow as pa
from pyspark.sql.types import StructType

from services.records import columns
from spark_jobs.spark_schemas import spark_schema
from spark_jobs.tables.columns import INT, LONG, STRING

WITH_HEADERS_SCHEMA = spark_schema(columns.RECORDS_SCHEMA)
RECORDS_SCHEMA = StructType([each for each in WITH_HEADERS_SCHEMA if each.name != "headers"])
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
