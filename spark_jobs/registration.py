"""Let a user's own Spark session read both data sources on every executor."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from pyspark.sql import SparkSession

from spark_jobs.records.source import SedimentRecords
from spark_jobs.shipping import ship_package
from spark_jobs.tables.source import SedimentTables


def register(spark: SparkSession) -> None:
    """Register both data sources in a session. Idempotent.

    Sends the package to the executors if the driver has it as a wheel.
    """
    ship_package(spark, _directory())
    for source in (SedimentTables, SedimentRecords):
        spark.dataSource.register(source)


@cache
def _directory() -> Path:
    """Return the one directory of this process: Spark accepts a file name from one path only.

    It is there until the process ends, because executors that start later fetch the file, too.
    """
    directory = Path(tempfile.mkdtemp(prefix="sediment-package-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory
