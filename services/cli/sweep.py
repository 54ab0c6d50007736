"""Sweep in this process, or as the driver of Spark, and report the results: `sediment sweep`."""

import sys
from collections.abc import Callable
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
from services.cli.output import CommandError, Format, print_table, say, size_text
from services.common.printable import printable
from spark_jobs import options

if TYPE_CHECKING:
    from spark_jobs.launch import ConfigT
    from spark_jobs.sweeps.report import SweepReport
    from spark_jobs.sweeps.stages import Engine
    from spark_jobs.sweeps.sweep import SweepRun


app = command_group(
    "Expire segments or remove partitions in bulk: plan, mark, delete, report. A dry run unless "
    "--apply is given."
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

_MaxTopicPercent = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=100,
        help="Refuse a topic of which the plan names a larger share of segments or bytes.",
    ),
]

_SegmentsPerS = Annotated[
    float,
    typer.Option(min=0, help="Mark, and delete, at most so many segments a second; 0: no limit."),
]

_WaveSegments = Annotated[
    int,
    typer.Option(min=1, help="Segments to mark and delete before settings are looked at again."),
]

_Engine = Annotated[
    options.EngineName,
    typer.Option(
        help="What does the work: this process, or Spark. auto: this process up to 3,000,000 "
        "segments, unless an option of Spark is given."
    ),
]

_BatchSize = Annotated[int, typer.Option(min=1, max=1000, help="Segments per call to RSM.")]

_RetryForS = Annotated[
    float, typer.Option(min=0, help="How long a task retries while a service is down, seconds.")
]

_Master = Annotated[
    str | None,
    typer.Option(
        help="Spark's master URL; executors need this package installed. Default: that of "
        "spark-defaults.conf, or local[*]."
    ),
]

_DriverMemory = Annotated[
    str | None,
    typer.Option(
        help="Memory of Spark's driver, which does all the work with a local master. Default: "
        "that of spark-defaults.conf, or 1g."
    ),
]

_Conf = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="A property of Spark; may be repeated."),
]

_WorkDir = Annotated[
    str | None,
    typer.Option(
        help="Directory for plan and outcomes, in a folder per plan: a path, or a URI that Spark "
        "knows, such as s3a://BUCKET/PREFIX. All executors must see it. Default: a temporary "
        "directory."
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
    max_topic_percent: _MaxTopicPercent = None,
    segments_per_s: _SegmentsPerS = options.SEGMENTS_PER_S,
    wave_segments: _WaveSegments = options.WAVE_SEGMENTS,
    batch_size: _BatchSize = options.BATCH_SIZE,
    copy_grace_ms: Annotated[
        int,
        typer.Option(min=0, help="Treat a copy as in progress this long after it began, ms."),
    ] = 3_600_000,
    retry_for_s: _RetryForS = options.RETRY_FOR_S,
    engine: _Engine = options.EngineName.AUTO,
    master: _Master = None,
    driver_memory: _DriverMemory = None,
    conf: _Conf = None,
    work_dir: _WorkDir = None,
    report: _Report = None,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Delete what retention no longer keeps.

    Only of topics with sediment.retention.owner=sweep.

    \b
    Exit codes:
      0  done; of a dry run: planned
      1  some segments failed; they are named, and another run may delete them
      2  refused, all or in part; another run would refuse it again
      3  a service or Spark failed; run the command again and it continues
    """
    from spark_jobs.sweeps.retention_sweep import JOB, Config, run

    _require_installed(engine)

    rsm, rlmm = rsm or address_of("rsm", data_dir), rlmm or address_of("rlmm", data_dir)
    shared = options.SweepOptions(
        rsm=rsm,
        rlmm=rlmm,
        topics=tuple(topic or ()),
        apply=apply,
        max_segments=max_segments,
        max_bytes=max_bytes,
        max_topic_percent=max_topic_percent,
        segments_per_s=segments_per_s or None,
        wave_segments=wave_segments,
        batch_size=batch_size,
        retry_for_s=retry_for_s,
        engine=engine,
        master=master,
        driver_memory=driver_memory,
        conf=options.properties_of(conf or ()),
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
    max_topic_percent: _MaxTopicPercent = None,
    segments_per_s: _SegmentsPerS = options.SEGMENTS_PER_S,
    wave_segments: _WaveSegments = options.WAVE_SEGMENTS,
    batch_size: _BatchSize = options.BATCH_SIZE,
    grace_ms: Annotated[
        int, typer.Option(min=0, help="Skip partitions that were marked less than this ago, ms.")
    ] = options.REMOVAL_GRACE_MS,
    retry_for_s: _RetryForS = options.RETRY_FOR_S,
    engine: _Engine = options.EngineName.AUTO,
    master: _Master = None,
    driver_memory: _DriverMemory = None,
    conf: _Conf = None,
    work_dir: _WorkDir = None,
    report: _Report = None,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Remove the partitions that are marked for deletion.

    Deletes all their segments, then their metadata.

    \b
    Exit codes:
      0  done; of a dry run: planned
      1  some segments failed or are left; they are named, and another run may delete them
      2  refused, all or in part; another run would refuse it again
      3  a service or Spark failed; run the command again and it continues
    """
    from spark_jobs.sweeps.partition_removal_sweep import JOB, Config, run

    _require_installed(engine)

    rsm, rlmm = rsm or address_of("rsm", data_dir), rlmm or address_of("rlmm", data_dir)
    shared = options.SweepOptions(
        rsm=rsm,
        rlmm=rlmm,
        topics=tuple(topic or ()),
        apply=apply,
        max_segments=max_segments,
        max_bytes=max_bytes,
        max_topic_percent=max_topic_percent,
        segments_per_s=segments_per_s or None,
        wave_segments=wave_segments,
        batch_size=batch_size,
        retry_for_s=retry_for_s,
        engine=engine,
        master=master,
        driver_memory=driver_memory,
        conf=options.properties_of(conf or ()),
        work_dir=work_dir,
        report=report,
        security=security_options([rsm, rlmm], data_dir),
    )
    raise typer.Exit(_run(JOB, Config(shared, grace_ms), run, output))


def _require_installed(engine: options.EngineName) -> None:
    from spark_jobs.sweeps.engines import require_spark
    from spark_jobs.sweeps.sweep_error import SweepError

    try:
        if engine is options.EngineName.SPARK:
            require_spark()
    except SweepError as e:
        raise CommandError(str(e), e.exit_code) from e


def _run(
    job: str,
    config: "ConfigT",
    run_job: "Callable[[Engine, SweepRun, ConfigT], SweepReport]",
    output: Format,
) -> int:
    from spark_jobs.launch import launch
    from spark_jobs.sweeps.sweep_error import SweepError

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
        error = None if partition["error"] in report.errors else partition["error"]
        for why in filter(None, (*partition["notes"], error)):
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
