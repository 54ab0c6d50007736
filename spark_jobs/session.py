"""The one place that starts Spark."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

import psutil
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from spark_jobs.failures import SweepError

_TASK_ATTEMPTS = 4
_QUICK_COMPILER = "-XX:TieredStopAtLevel=1"
_NO_JAVA = "Spark needs Java 17 or newer: install it, or set JAVA_HOME to where it is"


@contextmanager
def spark_session(
    name: str, scratch: Path, log_path: Path, master: str = "local[*]", driver_memory: str = "1g"
) -> Iterator[SparkSession]:
    """A Spark of our own, or that of the spark-submit that runs us, whose master it keeps.

    Args:
        scratch: for Spark's own files on this machine; must outlive the session.
        log_path: gets what Spark and its Java machine have to say.
        driver_memory: of the Java machine; a local master does all of its work there.

    Raises:
        SweepError: there is no Java, or it cannot run Spark.
    """
    conf = SparkConf().setAppName(name)
    conf.set("spark.ui.enabled", "false").set("spark.ui.showConsoleProgress", "false")
    conf.set("spark.sql.session.timeZone", "UTC")
    if not _runs_under_spark_submit():
        _require_java()
        conf.setMaster(_with_task_attempts(master)).set("spark.driver.memory", driver_memory)
        conf.set("spark.local.dir", str(scratch / "local"))
        conf.set("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        if master.startswith("local"):
            conf.set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
            # A small sweep's Java ends soon after it started: the quick compiler saves a third of
            # its CPU time.
            conf.set("spark.driver.extraJavaOptions", _QUICK_COMPILER)
            conf.set("spark.executor.extraJavaOptions", _QUICK_COMPILER)
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        # Executors of local-cluster keep their files below Spark's own installation otherwise.
        os.environ["SPARK_WORKER_DIR"] = str(scratch / "workers")
    with _no_java_left_behind():
        gateway = _launched(conf, log_path)
    spark = SparkSession(SparkContext(conf=conf, gateway=gateway))
    spark.conf.set("spark.sql.shuffle.partitions", 2 * spark.sparkContext.defaultParallelism)
    try:
        yield spark
    finally:
        _stop(spark, gateway)


def _stop(spark: SparkSession, gateway: JavaGateway) -> None:
    """End Spark, also where a signal cut off what it was being told."""
    try:
        spark.stop()
    except (Py4JError, PySparkException, OSError):
        java: Popen[bytes] | None = getattr(gateway, "proc", None)
        if java is not None:
            java.kill()


def _launched(conf: SparkConf, log_path: Path) -> JavaGateway:
    with log_path.open("ab") as log:
        streams = {"stdout": log, "stderr": log}
        try:
            return launch_gateway(conf, streams)  # type: ignore[no-untyped-call]  # none published
        except PySparkRuntimeError as e:
            said = log_path.read_text(errors="replace").strip().partition("\n")[0]
            raise SweepError(f"Spark did not start: {said or 'Java said nothing'}") from e


@contextmanager
def _no_java_left_behind() -> Iterator[None]:
    """End what was started inside where it does not end well: a Java that is interrupted while it
    starts would wait for ever for the one who began it."""
    before = psutil.Process().children()
    try:
        yield
    except BaseException:
        for child in psutil.Process().children():
            if child not in before:
                child.kill()
        raise


def _runs_under_spark_submit() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if shutil.which(str(Path(home, "bin", "java")) if home else "java") is None:
        raise SweepError(_NO_JAVA)


def _with_task_attempts(master: str) -> str:
    """local[2] as local[2,4]: alone of all masters, a local one never runs a task again."""
    if master.startswith("local[") and "," not in master:
        return f"{master.removesuffix(']')},{_TASK_ATTEMPTS}]"
    return master
