"""Start Spark, run a sweep, stop Spark; report a failure as one sentence and an exit code."""

import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from threading import Timer
from types import FrameType
from typing import Protocol, TextIO, TypeVar
from uuid import uuid4

import psutil
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from services.common.printable import printable
from services.common.secret_variables import is_private
from spark_jobs.options import SweepOptions
from spark_jobs.report import EXIT_REFUSED, SweepError, SweepReport, sweep_errors
from spark_jobs.sweep import Say, SweepRun

_TASK_ATTEMPTS = 4
_QUICK_COMPILER = "-XX:TieredStopAtLevel=1"
_NO_JAVA = "Spark needs Java 17 or newer and found none; install it or set JAVA_HOME"


@contextmanager
def spark_session(
    name: str, scratch: Path, log_path: Path, master: str = "local[*]", driver_memory: str = "1g"
) -> Iterator[SparkSession]:
    """Start a Spark session, or use that of the spark-submit that runs this process.

    Args:
        scratch: directory for Spark's files on this machine; must outlive the session.
        log_path: file for the output of Spark and its JVM.
        driver_memory: of the JVM; a local master does all its work there.

    Raises:
        SweepError: Java is missing, or cannot run Spark.
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
            # The JVM of a small sweep ends soon: the quick compiler saves a third of its CPU time.
            conf.set("spark.driver.extraJavaOptions", _QUICK_COMPILER)
            conf.set("spark.executor.extraJavaOptions", _QUICK_COMPILER)
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        # Without it executors of local-cluster write into Spark's installation.
        os.environ["SPARK_WORKER_DIR"] = str(scratch / "workers")
    with _no_java_left_behind():
        gateway = _launched(conf, log_path)
    spark = SparkSession(SparkContext(conf=conf, gateway=gateway))
    spark.conf.set("spark.sql.shuffle.partitions", 2 * spark.sparkContext.defaultParallelism)
    try:
        yield spark
    finally:
        _stop_session(spark, gateway)


def _stop_session(spark: SparkSession, gateway: JavaGateway) -> None:
    """Stop Spark; kill its JVM if a signal interrupted a call to it."""
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
            # Its executors inherit the environment.
            with _without_secrets():
                return launch_gateway(conf, streams)  # type: ignore[no-untyped-call]  # none exist
        except PySparkRuntimeError as e:
            said = log_path.read_text(errors="replace").strip().partition("\n")[0]
            raise SweepError(f"Spark did not start: {said or 'Java printed nothing'}") from e


@contextmanager
def _without_secrets() -> Iterator[None]:
    """Keep the settings of the services, and secrets of S3 and PostgreSQL, from child processes.

    Sweeps read and delete through RSM and RLMM, so no job of ours needs them.
    """
    kept = {name: os.environ.pop(name) for name in [*os.environ] if is_private(name)}
    try:
        yield
    finally:
        os.environ.update(kept)


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


def _runs_under_spark_submit() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if shutil.which(str(Path(home, "bin", "java")) if home else "java") is None:
        raise SweepError(_NO_JAVA)


def _with_task_attempts(master: str) -> str:
    """Turn local[2] into local[2,4]: by default only a local master never retries a task."""
    if master.startswith("local[") and "," not in master:
        return f"{master.removesuffix(']')},{_TASK_ATTEMPTS}]"
    return master


class JobConfig(Protocol):
    """The configuration of a job; each job has its own dataclass."""

    @property
    def options(self) -> SweepOptions: ...


_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_AGAIN_S = 0.1
ConfigT = TypeVar("ConfigT", bound=JobConfig)
RunJob = Callable[[SparkSession, SweepRun, ConfigT], SweepReport]


def launch(
    job: str, config: ConfigT, run_job: RunJob[ConfigT], say: Say, document: TextIO | None
) -> SweepReport:
    """Run a job to its end. Must be called in the main thread: SIGTERM and SIGINT stop Spark.

    Args:
        say: called with each phase; the first one has the plan's id.
        document: stream for the report if the options name no file; None for no report.

    Raises:
        SweepError: the job could not start or continue, or was stopped by a signal.
    """
    options, plan_id = config.options, uuid4().hex
    with (
        sweep_errors(),
        _stopped_by_signals(),
        tempfile.TemporaryDirectory(
            prefix="sediment-sweep-", ignore_cleanup_errors=True
        ) as scratch,
    ):
        options.services.require_reachable()
        _require_known(options)
        directory = _made((options.work_dir or Path(scratch)).absolute() / plan_id)
        _require_writable(options.report)
        say(f"plan {plan_id}: starting Spark")
        this = SweepRun(job, plan_id, directory, say)
        with spark_session(
            f"sediment {job} {plan_id}",
            Path(scratch),
            directory / "spark.log",
            options.master,
            options.driver_memory,
        ) as spark:
            _listen_for_signals()  # Spark has replaced our handler by its own
            report = run_job(spark, this, config)
        _hand_over(this.document, options.report, document)
        return report


def run_as_program(job: str, parse: Callable[[], ConfigT], run_job: RunJob[ConfigT]) -> int:
    """Run a job for `python -m` or spark-submit and return its exit code.

    The report goes to standard output or --report, a failure as one line to standard error.
    """
    try:
        with sweep_errors():
            config = parse()
        report = launch(
            job, config, run_job, lambda text: _print_line(f"{job}: {text}"), sys.stdout
        )
    except SweepError as e:
        _print_line(f"{job}: {e}")
        return e.exit_code
    return report.exit_code


def _print_line(text: str) -> None:
    sys.stderr.write(f"{printable(text)}\n")


def _require_known(options: SweepOptions) -> None:
    with options.services.connected_rlmm() as rlmm:
        for topic in options.topics:
            page = options.services.retrying()(rlmm.list_partitions, topic=topic, page_size=1)
            if not page.partitions:
                raise SweepError(
                    f"--topic: RLMM knows no topic {topic!r}; `sediment topics list` lists them",
                    EXIT_REFUSED,
                )


def _made(directory: Path) -> Path:
    try:
        directory.mkdir(parents=True)
    except OSError as e:
        raise SweepError(f"--work-dir: {directory}: {e.strerror}", EXIT_REFUSED) from e
    return directory


def _partial(report: Path) -> Path:
    """Return the file that is written first, so that no reader gets half a report."""
    return report.with_name(f".{report.name}.partial")


def _require_writable(report: Path | None) -> None:
    if report is not None:
        try:
            _partial(report).touch()
            _partial(report).unlink()
        except OSError as e:
            raise SweepError(f"--report: {report}: {e.strerror}", EXIT_REFUSED) from e


def _hand_over(made: Path, report: Path | None, document: TextIO | None) -> None:
    try:
        if report is not None:
            shutil.copyfile(made, _partial(report))
            _partial(report).replace(report)
        elif document is not None:
            with made.open(encoding="utf-8") as file:
                shutil.copyfileobj(file, document)
            document.flush()
    except OSError as e:
        # Keep the only record of the deletions: the scratch directory is about to be removed.
        with tempfile.NamedTemporaryFile(
            prefix="sediment-report-", suffix=".json", delete=False
        ) as kept:
            shutil.copyfile(made, kept.name)
        where = report or "standard output"
        raise SweepError(f"{where}: {e.strerror}; the report is in {kept.name}") from e


class _StoppedError(BaseException):
    """A signal stops the job; a BaseException, so that no handler of errors swallows it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _stop(number: int, frame: FrameType | None) -> None:
    # Calls to the JVM that are cut off log at length; one line of the sweep is enough.
    logging.disable()
    raise _StoppedError(number)


def _stop_later(lost: "sys.UnraisableHookArgs") -> None:
    """Send the signal again if Python dropped its exception, in a finalizer or a fork."""
    if isinstance(lost.exc_value, _StoppedError):
        Timer(_AGAIN_S, os.kill, [os.getpid(), lost.exc_value.number]).start()
    else:
        sys.__unraisablehook__(lost)


def _listen_for_signals() -> None:
    for number in _SIGNALS:
        signal.signal(number, _stop)


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    hook_before, sys.unraisablehook = sys.unraisablehook, _stop_later
    _listen_for_signals()
    try:
        yield
    except _StoppedError as e:
        text = "stopped; run the command again to finish what is marked"
        raise SweepError(text, 128 + e.number) from e
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = hook_before
        logging.disable(logging.NOTSET)
