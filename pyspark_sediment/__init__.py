"""Let Spark find the data source `sediment` by its name.

Spark imports every top-level module that begins with `pyspark_`, and registers its `DefaultSource`.
"""

from spark_jobs.tables.source import SedimentTables as DefaultSource

__all__ = ["DefaultSource"]
