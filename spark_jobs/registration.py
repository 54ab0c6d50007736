"""Let a user's own Spark session read both data sources on every executor."""

import atexit
import shutil
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from spark_jobs.records.source import SedimentRecords
from spark_jobs.shipping import ship_package
from spark_jobs.tables.source import SedimentTables


def register(spark: SparkSession) -> None:
    """Register both data sources in a session.

    Sends the package to the executors if the driver has it as a wheel.
    """
    directory = Path(tempfile.mkdtemp(prefix="sediment-package-"))
    # Executors that start later fetch the file from here, too.
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    ship_package(spark, directory)
    for source in (SedimentTables, SedimentRecords):
        spark.dataSource.register(source)
