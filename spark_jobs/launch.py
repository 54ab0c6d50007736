"""Choose and start an engine, run a sweep, stop; report a failure as one sentence and a code."""

import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Timer
from types import FrameType
from typing import Protocol, TextIO, TypeVar
from uuid import uuid4

from services.api.errors import RemoteStorageError
from services.common.printable import printable
from spark_jobs.options import SweepOptions
from spark_jobs.sweeps.engines import open_local, open_spark, prefers_spark
from spark_jobs.sweeps.progress import still_said
from spark_jobs.sweeps.report import SEGMENTS_SUFFIX
from spark_jobs.sweeps.scratch import TEMPORARY, disk_errors, scratch_directory
from spark_jobs.sweeps.stages import Engine, TooManySegmentsError
from spark_jobs.sweeps.sweep import Say, SweepRun
from spark_jobs.sweeps.sweep_error import EXIT_REFUSED, SweepError, service_errors

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_AGAIN_S = 0.1
_STOPPED = "stopped; run the command again to finish what it began"


class JobConfig(Protocol):
    """The configuration of a job; each job has its own dataclass."""

    @property
    def options(self) -> SweepOptions: ...

    @property
    def may_speculate(self) -> bool:
        """Return whether Spark may run a second copy of a slow task while the first one runs."""


class Report(Protocol):
    """What a job returns when its document is written."""

    @property
    def exit_code(self) -> int: ...


ConfigT = TypeVar("ConfigT", bound=JobConfig)
ReportT = TypeVar("ReportT", bound=Report)
RunJob = Callable[[Engine, SweepRun, ConfigT], ReportT]


def launch(
    job: str, config: ConfigT, run_job: RunJob[ConfigT, ReportT], say: Say, document: TextIO | None
) -> ReportT:
    """Run a job to its end. Must be called in the main thread: SIGTERM and SIGINT stop it.

    Args:
        say: called with each phase; the first one has the plan's id.
        document: stream for the report if the options name no file; None for no report.

    Raises:
        SweepError: the job could not start or continue, or was stopped by a signal.
    """
    options, plan_id = config.options, uuid4().hex
    with service_errors(), stopped_by_signals(), scratch_directory() as scratch:
        options.services.require_reachable()
        _require_known(options)
        directory = _made((options.local_work_dir or scratch).absolute() / plan_id)
        _require_writable(options.report)
        this = SweepRun(job, plan_id, directory, say)
        try:
            with disk_errors(TEMPORARY if options.local_work_dir is None else "--work-dir"):
                report = _run(this, config, run_job, scratch)
        except (SweepError, RemoteStorageError):
            if this.document.exists():  # of the waves before
                try:
                    _hand_over(this, options.report, document)
                except SweepError as e:
                    say(str(e))
            raise
        _hand_over(this, options.report, document)
        return report


def _run(
    this: SweepRun, config: ConfigT, run_job: RunJob[ConfigT, ReportT], scratch: Path
) -> ReportT:
    options = config.options
    if not prefers_spark(options):
        this.say(f"plan {this.plan_id}: in this process")
        # Modules stay: the collector need not scan them again and again.
        gc.collect()
        gc.freeze()
        try:
            return run_job(open_local(this.directory, options), this, config)
        except TooManySegmentsError:
            this.say(f"plan {this.plan_id}: many segments, so Spark continues")
            shutil.rmtree(this.directory)
            this.directory.mkdir()
    with ExitStack() as opened:
        with still_said(this.say, f"plan {this.plan_id}: starting Spark"):
            opening = open_spark(this, options, scratch, may_speculate=config.may_speculate)
            engine = opened.enter_context(opening)
        return run_job(engine, this, config)


def run_as_program(
    job: str, parse: Callable[[], ConfigT], run_job: RunJob[ConfigT, ReportT]
) -> int:
    """Run a job for `python -m` or spark-submit and return its exit code.

    The report goes to standard output or --report, a failure as one line to standard error.
    """
    try:
        with service_errors():
            config = parse()
        report = launch(job, config, run_job, lambda text: print_line(f"{job}: {text}"), sys.stdout)
    except SweepError as e:
        print_line(f"{job}: {e}")
        return e.exit_code
    return report.exit_code


def print_line(text: str) -> None:
    """Write a line to standard error, with characters that a terminal would obey escaped."""
    sys.stderr.write(f"{printable(text)}\n")


def _require_known(options: SweepOptions) -> None:
    with options.services.connected_rlmm() as rlmm:
        for topic in options.topics:
            page = rlmm.list_partitions(topic=topic, page_size=1)
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


def _hand_over(this: SweepRun, report: Path | None, document: TextIO | None) -> None:
    try:
        if report is not None:
            if this.segments.exists():
                shutil.copyfile(this.segments, report.with_name(f"{report.name}{SEGMENTS_SUFFIX}"))
            shutil.copyfile(this.document, _partial(report))
            _partial(report).replace(report)
        elif document is not None:
            with this.document.open(encoding="utf-8") as file:
                document.writelines(line.rstrip("\n") for line in file)
                document.write("\n")
                document.flush()
    except OSError as e:
        with tempfile.NamedTemporaryFile(
            prefix="sediment-report-", suffix=".json", delete=False
        ) as copy:
            shutil.copyfile(this.document, copy.name)
        where = report or "standard output"
        raise SweepError(f"{where}: {e.strerror}; the report is in {copy.name}") from e


class _StoppedError(KeyboardInterrupt):
    """A signal stops the job.

    For a KeyboardInterrupt alone Py4J closes the connection on which a call to the JVM waits. On
    that of any other exception the next call of the thread, such as that which stops Spark, would
    wait until the JVM has answered the first. And no handler of errors swallows it.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _stop_later(lost: "sys.UnraisableHookArgs") -> None:
    """Send the signal again if Python dropped its exception, in a finalizer or a fork."""
    if isinstance(lost.exc_value, _StoppedError):
        Timer(_AGAIN_S, os.kill, [os.getpid(), lost.exc_value.number]).start()
    else:
        sys.__unraisablehook__(lost)


@contextmanager
def stopped_by_signals(text: str = _STOPPED) -> Iterator[None]:
    """Turn SIGTERM and SIGINT into SweepError with `text`. Must be entered in the main thread."""
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        # Calls to the JVM that are cut off log at length; one line of the sweep is enough.
        logging.disable()
        received.append(number)
        raise _StoppedError(number)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    hook_before, sys.unraisablehook = sys.unraisablehook, _stop_later
    for number in _SIGNALS:
        signal.signal(number, stop)
    try:
        yield
    except (KeyboardInterrupt, Exception) as e:
        # Spark's own handler, while a session starts, raises KeyboardInterrupt itself. And the JVM
        # may refuse the calls that clean up after the one that the signal cut off.
        if not received and not isinstance(e, KeyboardInterrupt):
            raise
        raise SweepError(text, 128 + (received or [signal.SIGINT])[0]) from e
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = hook_before
        logging.disable(logging.NOTSET)
