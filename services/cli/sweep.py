"""`sediment sweep`: runs a job of spark_jobs right here as Spark's driver, and shows its report."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.cli.connections import address_of
from services.cli.failures import EXIT_FAILED, CommandError
from services.cli.output import Format, print_table, say, size_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_jobs.launch import ConfigT
    from spark_jobs.options import SweepOptions
    from spark_jobs.report import SweepReport
    from spark_jobs.sweep import SweepRun

_NO_SPARK = (
    "this needs Spark, which is not installed here: in Sediment's checkout, "
    f"{sys.executable} -m pip install -e '.[spark]'"
)


@dataclass(frozen=True)
class SharedOptions:
    """What both sweeps take from the command line; spark_jobs.options says what each means."""

    rsm: str | None
    rlmm: str | None
    data_dir: Path | None
    topics: list[str]
    apply: bool
    max_segments: int
    max_bytes: int | None
    batch_size: int
    retry_for_s: float
    master: str
    driver_memory: str
    work_dir: Path | None
    report: Path | None


def run_retention(shared: SharedOptions, copy_grace_ms: int, output: Format) -> int:
    """Answer the exit code that the report deserves."""
    with _spark_installed():
        from spark_jobs.retention_sweep import JOB, Config, run

    config = Config(_options(shared), copy_grace_ms)
    return _run(JOB, config, run, output)


def run_removal(shared: SharedOptions, grace_ms: int, output: Format) -> int:
    """Answer the exit code that the report deserves."""
    with _spark_installed():
        from spark_jobs.partition_removal_sweep import JOB, Config, run

    config = Config(_options(shared), grace_ms)
    return _run(JOB, config, run, output)


@contextmanager
def _spark_installed() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as e:
        if (e.name or "").partition(".")[0] in ("spark_jobs", "services"):
            raise
        raise CommandError(_NO_SPARK, EXIT_FAILED) from e


def _options(shared: SharedOptions) -> "SweepOptions":
    from spark_jobs.options import SweepOptions

    return SweepOptions(
        rsm=shared.rsm or address_of("rsm", shared.data_dir),
        rlmm=shared.rlmm or address_of("rlmm", shared.data_dir),
        topics=tuple(shared.topics),
        apply=shared.apply,
        max_segments=shared.max_segments,
        max_bytes=shared.max_bytes,
        batch_size=shared.batch_size,
        retry_for_s=shared.retry_for_s,
        master=shared.master,
        driver_memory=shared.driver_memory,
        work_dir=shared.work_dir,
        report=shared.report,
    )


def _run(
    job: str,
    config: "ConfigT",
    run_job: "Callable[[SparkSession, SweepRun, ConfigT], SweepReport]",
    output: Format,
) -> int:
    from spark_jobs.failures import SweepError
    from spark_jobs.launch import launch

    document = sys.stdout if output is Format.JSON else None
    try:
        with _ProgressLine(job) as phase:
            report = launch(job, config, run_job, phase, document)
    except SweepError as e:
        raise CommandError(str(e), e.exit_code) from e
    if output is Format.TABLE:
        _print(report)
    return report.exit_code


class _ProgressLine:
    """What the sweep is at, in one line on standard error that is written over on a terminal.
    Elsewhere only the first is printed, which has the plan's id."""

    def __init__(self, job: str) -> None:
        from rich.console import Console
        from rich.status import Status

        console = Console(stderr=True)
        self._job = job
        self._status = Status(job, console=console)
        self._is_terminal = console.is_terminal
        self._is_first = True

    def __enter__(self) -> "Callable[[str], None]":
        if self._is_terminal:
            self._status.start()
        return self._show

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def _show(self, phase: str) -> None:
        if self._is_terminal:
            self._status.update(f"{self._job}: {phase}")
        elif self._is_first:
            say(f"{self._job}: {phase}")
        self._is_first = False


def _print(report: "SweepReport") -> None:
    header, totals = report.header, report.totals
    if report.largest:
        title = f"{header.job}, plan {header.plan_id}"
        columns = ("partition", "outcome", "planned", "bytes", "deleted", "refused", "failed")
        print_table(title, columns, map(_as_row, report.largest))
    for reason, partitions in sorted(totals.skipped.items()):
        say(f"{partitions} partition(s) left alone: {reason}")
    for partition in report.largest:
        for why in filter(None, (*partition["notes"], partition["error"])):
            say(f"{_name(partition)}: {why}")
    for error, segments in report.errors.items():
        say(f"{segments} segment(s): {error}")
    if header.refusal is not None:
        say(f"sediment: {header.refusal}")
    counts = totals.as_json()
    done = (
        f"{counts['deleted_segments']} deleted, {counts['refused_segments']} refused, "
        f"{counts['failed_segments']} failed, in {totals.partitions} partitions, "
        f"{counts['unfinished_partitions']} of them not finished"
    )
    say(
        f"{report.outcome}: {counts['planned_segments']} segments planned, "
        f"{size_text(counts['planned_bytes'])}; "
        f"{done if header.apply else 'a dry run, nothing was changed'}"
    )


def _as_row(partition: dict[str, Any]) -> tuple[object, ...]:
    keys = (
        "outcome",
        "planned_segments",
        "planned_bytes",
        "deleted_segments",
        "refused_segments",
        "failed_segments",
    )
    return (_name(partition), *(partition[key] for key in keys))


def _name(partition: dict[str, Any]) -> str:
    return f"{partition['topic']}-{partition['partition']}"
