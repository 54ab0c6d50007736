"""Start Spark with the user's settings, and with defaults only for what is not set; stop it."""

import os
import re
import shutil
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from threading import current_thread, main_thread

import psutil
import pyspark
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from services.common.secret_variables import is_private
from spark_jobs.shipping import ship_package
from spark_jobs.sweeps.sweep_error import EXIT_REFUSED, SweepError

DRIVER_MEMORY = "1g"
_TASK_ATTEMPTS = 4
_ANY_LOCAL = "local[*]"
_QUICK_COMPILER = "-XX:TieredStopAtLevel=1"
_SMALL_HEAP = (
    "-XX:+UseSerialGC -XX:InitialHeapSize=64m -XX:MaxNewSize=32m "
    "-XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=30"
)
"""Collect garbage before the heap grows: for a JVM that runs no tasks."""

_JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "PYSPARK_SUBMIT_ARGS")
_JAVA_FILES = ("java-opts", "spark-env.sh")
_DRIVER_OPTIONS = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")
_ERROR = re.compile(r"\b\w*(?:Exception|(?<=\w)Error): .*|^(?:Invalid|Unrecognized) .*")
_NO_REASON = re.compile(r"WARNING|Error: A fatal|Error: Could not create|\S+/spark-class: line")
_NO_MASTER = "All masters are unresponsive"
_REFUSED = re.compile(r"NumberFormat|IllegalArgument|must (?:be|either)|parse|Invalid|Unrecognized")
"""What Java says of an option that it cannot read."""

ENDED = "its Java process has ended: killed, out of memory, or without a master that answers"
_NO_JAVA = "Spark needs Java 17 or newer, and there is none; install it or set JAVA_HOME"


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """The options of Spark on the command line.

    Others are left to SPARK_CONF_DIR/spark-defaults.conf and to Spark's environment
    variables, then to the defaults of this module. Under spark-submit its options count.

    Attributes:
        conf: Spark's properties and their values, as in --conf.
        defaults: properties that a job needs, if they are not set elsewhere.
    """

    master: str | None = None
    driver_memory: str | None = None
    conf: tuple[tuple[str, str], ...] = ()
    defaults: tuple[tuple[str, str], ...] = ()


@contextmanager
def spark_session(
    name: str, scratch: Path, log_path: Path, settings: SparkSettings | None = None
) -> Iterator[SparkSession]:
    """Start a Spark session, or use that of the spark-submit that runs this process.

    Args:
        scratch: directory for Spark's files on this machine; must outlive the session.
        log_path: file for the output of Spark and its JVM.

    Raises:
        SweepError: Java is missing, or cannot run Spark.
    """
    settings = settings or SparkSettings()
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not is_submitted:
        _require_java()
    chosen = SparkConf(loadDefaults=False)
    for key, value in () if is_submitted else _chosen(name, settings):
        chosen.set(key, value)
    with _no_java_left_behind(), _environment(scratch, settings):
        gateway = _launched(chosen, log_path)
        _set_defaults(chosen, gateway, scratch, is_submitted, settings)
        with _own_interrupt():
            try:
                spark = SparkSession(SparkContext(conf=chosen, gateway=gateway))
            except (PySparkException, Py4JError, OSError) as e:
                raise not_started(f"{log_path.read_text(errors='replace')}\n{text_of(e)}") from e
    try:
        if is_submitted:
            ship_package(spark, scratch)
        yield spark
    finally:
        stop_session(spark, gateway)


@contextmanager
def _own_interrupt() -> Iterator[None]:
    """Put the handler of SIGINT back, which Spark replaces when it starts in the main thread."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if current_thread() is main_thread():
            signal.signal(signal.SIGINT, before)


def _chosen(name: str, settings: SparkSettings) -> Iterator[tuple[str, str]]:
    """Yield the properties that the command line sets."""
    yield "spark.app.name", name
    # spark-submit turns it on for shells, so that it is never missing later.
    yield "spark.ui.showConsoleProgress", "false"
    yield from settings.conf
    if settings.master is not None:
        yield "spark.master", settings.master
    if settings.driver_memory is not None:
        yield "spark.driver.memory", settings.driver_memory


def _set_defaults(
    chosen: SparkConf,
    gateway: JavaGateway,
    scratch: Path,
    is_submitted: bool,
    settings: SparkSettings,
) -> None:
    """Add our defaults of the properties that neither the command line nor Spark's files set."""
    known = gateway.jvm.SparkConf(True)
    master = str(known.get("spark.master", _ANY_LOCAL))
    defaults = {
        "spark.sql.session.timeZone": "UTC",
        # A task that is slow for once does not delay all; each is safe to run twice.
        "spark.speculation": "true",
        **dict(settings.defaults),
    }
    if not is_submitted and master.startswith("local"):
        defaults |= {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": str(scratch / "local"),
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
            "spark.executor.extraJavaOptions": _QUICK_COMPILER,
        }
    for key, value in defaults.items():
        if not known.contains(key):
            chosen.set(key, value)
    if not is_submitted:
        chosen.set("spark.master", _with_task_attempts(master))
        python = known.get("spark.pyspark.python", "")
        if python:
            os.environ["PYSPARK_PYTHON"] = python


def _with_task_attempts(master: str) -> str:
    """Turn local[2] into local[2,4]: by default only a local master never retries a task."""
    if master.startswith("local[") and "," not in master:
        return f"{master.removesuffix(']')},{_TASK_ATTEMPTS}]"
    return master


@contextmanager
def _environment(scratch: Path, settings: SparkSettings) -> Iterator[None]:
    """Set the variables that the JVM and Python workers start with, unless they are set.

    The JVM's memory and options must be known before Spark's files are read; as variables they
    count less than any property.
    """
    before = dict(os.environ)
    master = _master_of(settings)
    os.environ.setdefault("SPARK_DRIVER_MEMORY", DRIVER_MEMORY)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if java_options := list(_driver_java_options(master, settings)):
        os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(java_options))
    if master.startswith("local-cluster"):
        os.environ["SPARK_HOME"] = str(_spark_home(scratch))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _driver_java_options(master: str, settings: SparkSettings) -> Iterator[str]:
    """Yield options for the driver's JVM; none of a collector if the user has set any options.

    Java refuses to start with two collectors.
    """
    if master.startswith("local"):
        # The JVM of a small sweep ends soon: the quick compiler saves a third of its CPU time.
        yield _QUICK_COMPILER
    runs_tasks = master.startswith("local") and not master.startswith("local-cluster")
    if not runs_tasks and not _has_java_options(settings):
        yield _SMALL_HEAP


def _has_java_options(settings: SparkSettings) -> bool:
    """Say whether the user sets options of the driver's JVM, or of any Java."""
    if any(os.environ.get(name) for name in _JAVA_VARIABLES):
        return True
    if any(Path(_conf_directory(), name).exists() for name in _JAVA_FILES):
        return True
    text, chosen = _defaults(), dict(settings.conf)
    return any(name in chosen or name in text for name in _DRIVER_OPTIONS)


def _conf_directory() -> Path:
    home = os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
    return Path(os.environ.get("SPARK_CONF_DIR") or Path(home, "conf"))


def _defaults() -> str:
    """Return the user's file of properties; empty if there is none."""
    path = _conf_directory() / "spark-defaults.conf"
    return path.read_text(errors="replace") if path.is_file() else ""


def _master_of(settings: SparkSettings) -> str:
    match = re.search(r"^\s*spark\.master[\s=:]+(\S+)", _defaults(), re.MULTILINE)
    named = settings.master or dict(settings.conf).get("spark.master")
    return named or (match[1] if match else _ANY_LOCAL)


def _spark_home(scratch: Path) -> Path:
    """Return a directory laid out as Spark's installation that may be written to.

    The workers of local-cluster write their files into the directory `work` of SPARK_HOME.
    """
    installed = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    home = scratch / "spark"
    home.mkdir()
    for entry in installed.iterdir():
        if entry.name != "work":
            (home / entry.name).symlink_to(entry)
    return home


def stop_session(spark: SparkSession, gateway: JavaGateway) -> None:
    """Stop Spark; kill its JVM if a signal interrupted a call to it."""
    try:
        with warnings.catch_warnings():
            # A JVM that was killed, or whose call a signal cut off: the job names it itself.
            warnings.filterwarnings("ignore", "Unable to cleanly shutdown Spark JVM")
            spark.stop()
    except (Py4JError, PySparkException, OSError):
        java: Popen[bytes] | None = getattr(gateway, "proc", None)
        if java is not None:
            java.kill()


def _launched(conf: SparkConf, log_path: Path) -> JavaGateway:
    with log_path.open("ab") as log:
        streams = {"stdout": log, "stderr": log}
        try:
            # Its executors inherit the environment.
            with _without_secrets():
                return launch_gateway(conf, streams)  # type: ignore[no-untyped-call]  # none exist
        except PySparkRuntimeError as e:
            raise not_started(log_path.read_text(errors="replace")) from e


def not_started(text: str) -> SweepError:
    """Describe why Spark did not start by the last error in Java's output or exception."""
    lines = [line.strip(": ") for line in text.splitlines() if line.strip(": ")]
    errors = [match[0] for line in lines if (match := _ERROR.search(line))]
    others = [line for line in lines if not _NO_REASON.match(line)]
    cause = (errors or others or [ENDED])[-1]
    if _NO_MASTER in text:
        cause = "no master answers at the address of --master"
    if _REFUSED.search(cause):
        return SweepError(f"Spark did not start: {cause}; check --master, --conf", EXIT_REFUSED)
    return SweepError(f"Spark did not start: {cause}")


def text_of(error: Exception) -> str:
    """Return the text of an error of Spark, for which Py4J may have to ask Java."""
    if isinstance(error, Py4JNetworkError | OSError | EOFError):
        return ENDED
    try:
        return str(error)
    except (Py4JError, OSError):
        return ENDED


@contextmanager
def _without_secrets() -> Iterator[None]:
    """Keep the settings of the services, and secrets of S3 and PostgreSQL, from child processes.

    Sweeps read and delete through RSM and RLMM, so no job of ours needs them.
    """
    removed = {name: os.environ.pop(name) for name in [*os.environ] if is_private(name)}
    try:
        yield
    finally:
        os.environ.update(removed)


@contextmanager
def _no_java_left_behind() -> Iterator[None]:
    """Kill the processes that were started inside if it fails.

    A JVM that is interrupted while it starts would wait forever for its parent.
    """
    before = psutil.Process().children()
    try:
        yield
    except BaseException:
        for child in psutil.Process().children():
            if child not in before:
                child.kill()
        raise


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if shutil.which(str(Path(home, "bin", "java")) if home else "java") is None:
        raise SweepError(_NO_JAVA)
