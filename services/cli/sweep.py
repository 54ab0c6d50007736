"""Sweep in this process, or as the driver of Spark, and report the results: `sediment sweep`."""

import sys
from collections.abc import Callable
from dataclasses import Field
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.status import Status
from rich.text import Text

from services.api.retention import REMOVAL_GRACE_MS
from services.cli.connections import Call, command_group, security_options, with_services
from services.cli.output import CommandError, print_table, say
from services.common.printable import printable
from services.views.texts import size_text
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


def _with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of SweepOptions, in its `**given`."""
    *own, _ = signature(command).parameters.values()
    shared = [
        Parameter(
            each.name, Parameter.KEYWORD_ONLY, default=_default_of(each), annotation=_option(each)
        )
        for each in options.OPTIONS.values()
    ]
    every = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in own] + shared
    command.__signature__ = Signature(every)  # type: ignore[attr-defined]  # read by typer
    command.__annotations__ = {each.name: each.annotation for each in every}
    return command


def _default_of(option: "Field[Any]") -> Any:
    return None if isinstance(option.default, tuple) else option.default


def _option(option: "Field[Any]") -> Any:
    kind = options.kind_of(option)
    many = list[kind] if isinstance(option.default, tuple) else kind  # type: ignore[valid-type]
    declared = many if _default_of(option) is not None else many | None
    said = typer.Option(
        options.flag_of(option),
        help=option.metadata["help"],
        metavar=option.metadata["metavar"],
    )
    return Annotated[declared, said]


@app.command()
@with_services("rsm", "rlmm")
@_with_options
def retention(
    call: Call,
    copy_grace_ms: Annotated[
        int,
        typer.Option(min=0, help="Treat a copy as in progress this long after it began, ms."),
    ] = options.GRACE_MS,
    **given: Any,
) -> None:
    """Delete what retention no longer keeps.

    Only of topics with sediment.retention.owner=sweep.

    \b
    Exit codes:
      1  some segments failed; they are named, and another run may delete them
      2  refused, all or in part; another run would refuse it again
    """
    from spark_jobs.sweeps.retention_sweep import JOB, run

    config = options.SweepConfig(_options(call, given), copy_grace_ms)
    raise typer.Exit(_run(JOB, config, run, call))


@app.command()
@with_services("rsm", "rlmm")
@_with_options
def removal(
    call: Call,
    grace_ms: Annotated[
        int, typer.Option(min=0, help="Skip partitions that were marked less than this ago, ms.")
    ] = REMOVAL_GRACE_MS,
    **given: Any,
) -> None:
    """Remove the partitions that are marked for deletion.

    Deletes all their segments, then their metadata.

    \b
    Exit codes:
      1  some segments failed or are left; they are named, and another run may delete them
      2  refused, all or in part; another run would refuse it again
    """
    from spark_jobs.sweeps.partition_removal_sweep import JOB, run

    config = options.SweepConfig(_options(call, given), grace_ms)
    raise typer.Exit(_run(JOB, config, run, call))


def _options(call: Call, given: dict[str, Any]) -> options.SweepOptions:
    _require_installed(given["engine"])
    rsm, rlmm = call.address("rsm"), call.address("rlmm")
    security = security_options([rsm, rlmm], call.data_dir)
    return options.sweep_options({**given, "rsm": rsm, "rlmm": rlmm}, security)


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
    call: Call,
) -> int:
    from spark_jobs.launch import launch
    from spark_jobs.sweeps.sweep_error import SweepError

    document = sys.stdout if call.is_json else None
    try:
        with _ProgressLine(job) as phase:
            report = launch(job, config, run_job, phase, document)
    except SweepError as e:
        raise CommandError(str(e), e.exit_code) from e
    if not call.is_json:
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
