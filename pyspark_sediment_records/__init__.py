"""Let Spark find the data source `sediment-records` by its name (as pyspark_sediment)."""

from spark_jobs.records.source import SedimentRecords as DefaultSource

__all__ = ["DefaultSource"]
