"""`sediment sweep`: run a Spark job with this process as its driver, and show what it did."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.cli.connections import DataDir, JsonOrTable, Rlmm, Rsm, address_of
from services.cli.output import EXIT_FAILED, CommandError, Format, print_table, say, size_text
from spark_jobs import options

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
    from spark_jobs.launch import launch
    from spark_jobs.report import SweepError

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


sweep = typer.Typer(
    no_args_is_help=True,
    help="Clean up in bulk on Spark: plan, mark, delete, report. A dry run without --apply.",
)

_Topic = Annotated[
    list[str] | None, typer.Option(help="Only topics of this name; may be repeated.")
]

_Apply = Annotated[bool, typer.Option("--apply", help="Delete. Without it nothing is changed.")]

_MaxSegments = Annotated[
    int, typer.Option(min=0, help="Do nothing if the plan names more new segments than this.")
]

_MaxBytes = Annotated[
    int | None, typer.Option(min=0, help="Do nothing if these have more bytes than this.")
]

_BatchSize = Annotated[int, typer.Option(min=1, max=1000, help="Segments in one call of RSM.")]

_RetryForS = Annotated[
    float, typer.Option(min=0, help="How long a task waits for a service that is away, seconds.")
]

_Master = Annotated[str, typer.Option(help="Spark's master; executors need this package too.")]

_DriverMemory = Annotated[
    str, typer.Option(help="Of Spark's driver, which with a local master does all the work.")
]

_WorkDir = Annotated[
    Path | None,
    typer.Option(
        help="Where plan, outcomes and Spark's log are kept, below the plan's id. Executors on "
        "other machines must see it under the same path. By default a temporary directory."
    ),
]

_Report = Annotated[
    Path | None, typer.Option(help="Write the report here, JSON. By default: -o json prints it.")
]


@sweep.command()
def retention(
    rsm: Rsm = None,
    rlmm: Rlmm = None,
    data_dir: DataDir = None,
    topic: _Topic = None,
    apply: _Apply = False,
    max_segments: _MaxSegments = options.MAX_SEGMENTS,
    max_bytes: _MaxBytes = None,
    batch_size: _BatchSize = options.BATCH_SIZE,
    copy_grace_ms: Annotated[
        int, typer.Option(min=0, help="A copy that began less than this ago is under way, ms.")
    ] = 3_600_000,
    retry_for_s: _RetryForS = options.RETRY_FOR_S,
    master: _Master = options.MASTER,
    driver_memory: _DriverMemory = options.DRIVER_MEMORY,
    work_dir: _WorkDir = None,
    report: _Report = None,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Delete what retention no longer keeps, of topics whose sediment.retention.owner is sweep.

    Exit code 0: all of it is done; of a dry run: there is a plan. 1: some of it was refused or
    failed, and is named. 2: refused, nothing was changed. 3: a service or Spark failed; run it
    again, and it goes on from where this one ended.
    """
    pass

    shared = SharedOptions(
        rsm=rsm,
        rlmm=rlmm,
        data_dir=data_dir,
        topics=topic or [],
        apply=apply,
        max_segments=max_segments,
        max_bytes=max_bytes,
        batch_size=batch_size,
        retry_for_s=retry_for_s,
        master=master,
        driver_memory=driver_memory,
        work_dir=work_dir,
        report=report,
    )
    raise typer.Exit(run_retention(shared, copy_grace_ms, output))


@sweep.command()
def removal(
    rsm: Rsm = None,
    rlmm: Rlmm = None,
    data_dir: DataDir = None,
    topic: _Topic = None,
    apply: _Apply = False,
    max_segments: _MaxSegments = options.MAX_SEGMENTS,
    max_bytes: _MaxBytes = None,
    batch_size: _BatchSize = options.BATCH_SIZE,
    grace_ms: Annotated[
        int, typer.Option(min=0, help="Leave a partition alone so long after it was marked, ms.")
    ] = options.REMOVAL_GRACE_MS,
    retry_for_s: _RetryForS = options.RETRY_FOR_S,
    master: _Master = options.MASTER,
    driver_memory: _DriverMemory = options.DRIVER_MEMORY,
    work_dir: _WorkDir = None,
    report: _Report = None,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Remove the partitions that are marked for deletion: all their segments, then themselves.

    Exit code 0: all of it is done; of a dry run: there is a plan. 1: some of it was refused, failed
    or is left, and is named. 2: refused, nothing was changed. 3: a service or Spark failed; run it
    again, and it goes on from where this one ended.
    """
    pass

    shared = SharedOptions(
        rsm=rsm,
        rlmm=rlmm,
        data_dir=data_dir,
        topics=topic or [],
        apply=apply,
        max_segments=max_segments,
        max_bytes=max_bytes,
        batch_size=batch_size,
        retry_for_s=retry_for_s,
        master=master,
        driver_memory=driver_memory,
        work_dir=work_dir,
        report=report,
    )
    raise typer.Exit(run_removal(shared, grace_ms, output))
