"""Send this package to Spark's executors if the driver has it as a wheel."""

import shutil
from pathlib import Path

from pyspark.sql import SparkSession

import services


def ship_package(spark: SparkSession, directory: Path) -> None:
    """Send this package to the executors if it is a wheel, as one of --py-files.

    Spark puts only files that end in .zip, .egg or .jar on the path of its Python workers.

    Args:
        directory: for a copy; must outlive the session.
    """
    archive = Path(services.__file__).parents[1]
    if archive.suffix == ".whl" and archive.is_file():
        copied = directory / f"{archive.stem}.zip"
        if not copied.exists():
            shutil.copyfile(archive, copied)
        spark.sparkContext.addPyFile(str(copied))
