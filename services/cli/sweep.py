"""Run a Spark job with this process as its driver, and report its results: `sediment sweep`."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.status import Status
from rich.text import Text

from services.cli.connections import (
    DataDir,
    JsonOrTable,
    Rlmm,
    Rsm,
    address_of,
    command_group,
    security_options,
)
from services.cli.output import EXIT_FAILED, CommandError, Format, print_table, say, size_text
from services.common.printable import printable
from services.local.installation import how_to_install
from spark_jobs import options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_jobs.launch import ConfigT
    from spark_jobs.report import SweepReport
    from spark_jobs.sweep import SweepRun


app = command_group(
    "Expire segments or remove partitions in bulk on Spark: plan, mark, delete, report. A dry run "
    "unless --apply is given."
)

_Topic = Annotated[
    list[str] | None, typer.Option(help="Only topics with this name; may be repeated.")
]

_Apply = Annotated[bool, typer.Option("--apply", help="Delete. Without it nothing is changed.")]

_MaxSegments = Annotated[
    int, typer.Option(min=0, help="Refuse a plan with more new segments than this.")
]

_MaxBytes = Annotated[
    int | None, typer.Option(min=0, help="Refuse a plan with more bytes in new segments than this.")
]

_BatchSize = Annotated[int, typer.Option(min=1, max=1000, help="Segments per call to RSM.")]

_RetryForS = Annotated[
    float, typer.Option(min=0, help="How long a task retries while a service is down, seconds.")
]

_Master = Annotated[
    str, typer.Option(help="Spark's master URL; executors need this package installed.")
]

_DriverMemory = Annotated[
    str,
    typer.Option(help="Memory of Spark's driver, which does all the work with a local master."),
]

_WorkDir = Annotated[
    Path | None,
    typer.Option(
        help="Directory for plan, outcomes and Spark's log, in a folder per plan. Executors on "
        "other machines must see it at the same path. Default: a temporary directory."
    ),
]

_Report = Annotated[
    Path | None,
    typer.Option(help="Write the report to this file as JSON. `-o json` prints it."),
]


@app.command()
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
        int,
        typer.Option(min=0, help="Treat a copy as in progress this long after it began, ms."),
    ] = 3_600_000,
    retry_for_s: _RetryForS = options.RETRY_FOR_S,
    master: _Master = options.MASTER,
    driver_memory: _DriverMemory = options.DRIVER_MEMORY,
    work_dir: _WorkDir = None,
    report: _Report = None,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Delete what retention no longer keeps.

    Only of topics with sediment.retention.owner=sweep.

    \b
    Exit codes:
      0  done; of a dry run: planned
      1  some segments were refused or failed; they are named
      2  refused; nothing was changed
      3  a service or Spark failed; run the command again and it continues
    """
    with _spark_installed():
        from spark_jobs.retention_sweep import JOB, Config, run

    rsm, rlmm = rsm or address_of("rsm", data_dir), rlmm or address_of("rlmm", data_dir)
    shared = options.SweepOptions(
        rsm=rsm,
        rlmm=rlmm,
        topics=tuple(topic or ()),
        apply=apply,
        max_segments=max_segments,
        max_bytes=max_bytes,
        batch_size=batch_size,
        retry_for_s=retry_for_s,
        master=master,
        driver_memory=driver_memory,
        work_dir=work_dir,
        report=report,
        security=security_options([rsm, rlmm], data_dir),
    )
    raise typer.Exit(_run(JOB, Config(shared, copy_grace_ms), run, output))


@app.command()
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
        int, typer.Option(min=0, help="Skip partitions that were marked less than this ago, ms.")
    ] = options.REMOVAL_GRACE_MS,
    retry_for_s: _RetryForS = options.RETRY_FOR_S,
    master: _Master = options.MASTER,
    driver_memory: _DriverMemory = options.DRIVER_MEMORY,
    work_dir: _WorkDir = None,
    report: _Report = None,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Remove the partitions that are marked for deletion.

    Deletes all their segments, then their metadata.

    \b
    Exit codes:
      0  done; of a dry run: planned
      1  some segments were refused, failed or are left; they are named
      2  refused; nothing was changed
      3  a service or Spark failed; run the command again and it continues
    """
    with _spark_installed():
        from spark_jobs.partition_removal_sweep import JOB, Config, run

    rsm, rlmm = rsm or address_of("rsm", data_dir), rlmm or address_of("rlmm", data_dir)
    shared = options.SweepOptions(
        rsm=rsm,
        rlmm=rlmm,
        topics=tuple(topic or ()),
        apply=apply,
        max_segments=max_segments,
        max_bytes=max_bytes,
        batch_size=batch_size,
        retry_for_s=retry_for_s,
        master=master,
        driver_memory=driver_memory,
        work_dir=work_dir,
        report=report,
        security=security_options([rsm, rlmm], data_dir),
    )
    raise typer.Exit(_run(JOB, Config(shared, grace_ms), run, output))


@contextmanager
def _spark_installed() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as e:
        if (e.name or "").partition(".")[0] in ("spark_jobs", "services"):
            raise
        how = how_to_install("spark", "install-spark")
        raise CommandError(
            f"sweeps need Spark, which is not installed; {how}, or use the image of "
            "docker/Dockerfile.spark",
            EXIT_FAILED,
        ) from e


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
    """Show the sweep's phase in one line on standard error, updated in place on a terminal.

    Elsewhere prints only the first phase, which has the plan's id.
    """

    def __init__(self, job: str) -> None:
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
            self._status.update(Text(printable(f"{self._job}: {phase}")))
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
        say(f"{partitions} partition(s) skipped: {reason}")
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
        f"{counts['unfinished_partitions']} of them unfinished"
    )
    say(
        f"{report.outcome}: {counts['planned_segments']} segments planned, "
        f"{size_text(counts['planned_bytes'])}; "
        f"{done if header.apply else 'dry run, nothing was changed'}"
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
