"""Turn the schemas of sweeps, which are Arrow's, into Spark's."""

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType


def spark_schema(schema: pa.Schema) -> StructType:
    """Return an Arrow schema as Spark has it."""
    return from_arrow_schema(schema)
