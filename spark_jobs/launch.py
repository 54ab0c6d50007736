"""What surrounds every sweep: the services are there, Spark comes and goes, failures are told."""

import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from types import FrameType
from typing import Protocol, TextIO, TypeVar
from uuid import uuid4

from pyspark.sql import SparkSession

from spark_jobs.failures import EXIT_REFUSED, SweepError, told_in_one_line
from spark_jobs.options import SweepOptions
from spark_jobs.report import SweepReport
from spark_jobs.session import spark_session
from spark_jobs.sweep import Say, SweepRun


class JobConfig(Protocol):
    """What a job is told; each has a dataclass of its own."""

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
        say: is told what the job is at; first of all the plan's id.
        document: where the report is written unless the options name a file; None: nowhere.

    Raises:
        SweepError: it did not begin, or could not go on, or was told to stop.
    """
    options, plan_id = config.options, uuid4().hex
    with (
        told_in_one_line(),
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
            _listen_for_signals()  # Spark has put a handler of its own in the place of ours
            report = run_job(spark, this, config)
        _hand_over(this.document, options.report, document)
        return report


def run_as_program(job: str, parse: Callable[[], ConfigT], run_job: RunJob[ConfigT]) -> int:
    """For `python -m` and spark-submit: the report on standard output or in --report, failures as
    a line on standard error; answers the exit code."""
    try:
        with told_in_one_line():
            config = parse()
        report = launch(job, config, run_job, lambda text: _tell(f"{job}: {text}"), sys.stdout)
    except SweepError as e:
        _tell(f"{job}: {e}")
        return e.exit_code
    return report.exit_code


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _require_known(options: SweepOptions) -> None:
    with options.services.connected_rlmm() as rlmm:
        for topic in options.topics:
            page = options.services.retrying()(rlmm.list_partitions, topic=topic, page_size=1)
            if not page.partitions:
                raise SweepError(f"--topic: no topic {topic!r} is known to RLMM", EXIT_REFUSED)


def _made(directory: Path) -> Path:
    try:
        directory.mkdir(parents=True)
    except OSError as e:
        raise SweepError(f"--work-dir: {directory}: {e.strerror}", EXIT_REFUSED) from e
    return directory


def _partial(report: Path) -> Path:
    """Beside it first: nobody shall see half a report."""
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
        # What was done is done, and this tells of it: it must not go with the scratch directory.
        with tempfile.NamedTemporaryFile(
            prefix="sediment-report-", suffix=".json", delete=False
        ) as kept:
            shutil.copyfile(made, kept.name)
        where = report or "standard output"
        raise SweepError(f"{where}: {e.strerror}; the report is in {kept.name}") from e


class _StoppedError(BaseException):
    """A signal asks us to end; nothing on the way may take it for a failure."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _stop(number: int, frame: FrameType | None) -> None:
    # What is cut off while it talks to Java tells of it at length; one line of ours is enough.
    logging.disable()
    raise _StoppedError(number)


def _stop_later(lost: "sys.UnraisableHookArgs") -> None:
    """Where a signal comes within a finalizer or a fork, Python drops what _stop raises."""
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
        text = "stopped; what is marked is finished by the next run"
        raise SweepError(text, 128 + e.number) from e
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = hook_before
        logging.disable(logging.NOTSET)
