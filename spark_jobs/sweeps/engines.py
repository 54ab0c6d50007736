"""Choose the engine that runs a sweep, and open it; imports Spark only if Spark is chosen."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from services.local.installation import how_to_install
from spark_jobs.options import LOCAL_SEGMENTS, EngineName, SweepOptions
from spark_jobs.sweeps.local_engine import LocalEngine
from spark_jobs.sweeps.stages import Engine
from spark_jobs.sweeps.sweep import SweepRun
from spark_jobs.sweeps.sweep_error import SweepError


def prefers_spark(options: SweepOptions) -> bool:
    """Return whether to begin with Spark: it is chosen, or an option needs it."""
    if options.engine is EngineName.AUTO:
        return "PYSPARK_GATEWAY_PORT" in os.environ or options.needs_spark
    return options.engine is EngineName.SPARK


def open_local(directory: Path, options: SweepOptions) -> Engine:
    """Return the engine of this process; it has no limit if it is chosen by name."""
    is_chosen = options.engine is EngineName.LOCAL
    return LocalEngine(directory, max_segments=None if is_chosen else LOCAL_SEGMENTS)


def require_spark() -> None:
    """Raise SweepError if Spark is not installed."""
    try:
        import pyspark  # noqa: F401, PLC0415
    except ModuleNotFoundError as e:
        how = how_to_install("spark", "install-spark")
        raise SweepError(
            f"--engine spark, or a tier of more than {LOCAL_SEGMENTS:,} segments, needs Spark, "
            f"which is not installed; {how}, choose --engine local, or use the image of "
            "docker/Dockerfile.spark"
        ) from e


@contextmanager
def open_spark(
    this: SweepRun, options: SweepOptions, scratch: Path, *, may_speculate: bool
) -> Iterator[Engine]:
    """Start Spark for a run, and stop it.

    Args:
        may_speculate: unless tasks share a rate: a second copy of one has a share of its own.

    Raises:
        SweepError: Spark or Java is missing, or does not start.
    """
    require_spark()
    from spark_jobs.spark_session import SparkSettings, spark_session  # noqa: PLC0415
    from spark_jobs.sweeps.executors import wait_for_executors  # noqa: PLC0415
    from spark_jobs.sweeps.spark_engine import SparkEngine, spark_errors  # noqa: PLC0415

    defaults = () if may_speculate else (("spark.speculation", "false"),)
    settings = SparkSettings(options.master, options.driver_memory, options.conf, defaults)
    name = f"sediment {this.job} {this.plan_id}"
    is_remote = options.work_dir is not None and options.local_work_dir is None
    # Not a URI: Hadoop would read a %20 as three characters of the name.
    where = f"{options.work_dir}/{this.plan_id}" if is_remote else f"file:{this.directory}"
    with (
        spark_errors(),
        spark_session(name, scratch, this.directory / "spark.log", settings) as spark,
    ):
        wait_for_executors(spark, this.say)
        yield SparkEngine(spark, where)
