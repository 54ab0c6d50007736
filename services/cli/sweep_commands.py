"""The commands of `sediment sweep` and their options; what they do is in services.cli.sweep."""

from pathlib import Path
from typing import Annotated

import typer

from services.cli.options import DataDir, JsonOrTable, Rlmm, Rsm
from services.cli.output import Format
from spark_jobs import defaults

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
    max_segments: _MaxSegments = defaults.MAX_SEGMENTS,
    max_bytes: _MaxBytes = None,
    batch_size: _BatchSize = defaults.BATCH_SIZE,
    copy_grace_ms: Annotated[
        int, typer.Option(min=0, help="A copy that began less than this ago is under way, ms.")
    ] = 3_600_000,
    retry_for_s: _RetryForS = defaults.RETRY_FOR_S,
    master: _Master = defaults.MASTER,
    driver_memory: _DriverMemory = defaults.DRIVER_MEMORY,
    work_dir: _WorkDir = None,
    report: _Report = None,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Delete what retention no longer keeps, of topics whose sediment.retention.owner is sweep.

    Exit code 0: all of it is done; of a dry run: there is a plan. 1: some of it was refused or
    failed, and is named. 2: refused, nothing was changed. 3: a service or Spark failed; run it
    again, and it goes on from where this one ended.
    """
    from services.cli.sweep import SharedOptions, run_retention

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
    max_segments: _MaxSegments = defaults.MAX_SEGMENTS,
    max_bytes: _MaxBytes = None,
    batch_size: _BatchSize = defaults.BATCH_SIZE,
    grace_ms: Annotated[
        int, typer.Option(min=0, help="Leave a partition alone so long after it was marked, ms.")
    ] = defaults.REMOVAL_GRACE_MS,
    retry_for_s: _RetryForS = defaults.RETRY_FOR_S,
    master: _Master = defaults.MASTER,
    driver_memory: _DriverMemory = defaults.DRIVER_MEMORY,
    work_dir: _WorkDir = None,
    report: _Report = None,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Remove the partitions that are marked for deletion: all their segments, then themselves.

    Exit code 0: all of it is done; of a dry run: there is a plan. 1: some of it was refused, failed
    or is left, and is named. 2: refused, nothing was changed. 3: a service or Spark failed; run it
    again, and it goes on from where this one ended.
    """
    from services.cli.sweep import SharedOptions, run_removal

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
