"""Let Spark find the data source `sediment` by its name, and programs register both sources.

Spark imports every top-level module that begins with `pyspark_`, and registers its `DefaultSource`.
"""

from spark_jobs.registration import register
from spark_jobs.tables.source import SedimentTables as DefaultSource

__all__ = ["DefaultSource", "register"]
