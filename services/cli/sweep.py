"""Sweep in this process, or as the driver of Spark, and report the results: `sediment sweep`."""

import sys
from collections.abc import Callable
from dataclasses import Field
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.api.retention import REMOVAL_GRACE_MS
from services.cli.command import quantity
from services.cli.connections import Call, command_group, set_options, with_services
from services.cli.output import CommandError, print_tables, progress, say
from services.cli.tables import Wide
from services.common.quantities import DURATION_MS, counted
from services.views.texts import size_text, sized
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
    set_options(command, [each.replace(kind=Parameter.KEYWORD_ONLY) for each in own] + shared)
    return command


def _default_of(option: "Field[Any]") -> Any:
    return None if isinstance(option.default, tuple) else option.default


def _option(option: "Field[Any]") -> Any:
    kind = options.kind_of(option)
    many = list[kind] if isinstance(option.default, tuple) else kind  # type: ignore[valid-type]
    declared = many if _default_of(option) is not None else many | None
    declaration = typer.Option(
        options.flag_of(option),
        parser=option.metadata["quantity"],
        help=option.metadata["help"],
        metavar=option.metadata["metavar"],
    )
    return Annotated[declared, declaration]


@app.command()
@with_services("rsm", "rlmm")
@_with_options
def retention(
    call: Call,
    copy_grace_ms: int = quantity(
        "--copy-grace", DURATION_MS, "Treat a copy as in progress this long.", options.GRACE_MS
    ),
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
    grace_ms: int = quantity(
        "--grace",
        DURATION_MS,
        "Skip partitions that were marked less than this ago.",
        REMOVAL_GRACE_MS,
    ),
    **given: Any,
) -> None:
    """Remove the partitions that are marked for deletion.

    Deletes all their segments, then their metadata.

    \b
    Exit codes:
      1  some segments failed or are left; they are named, and another run may
         delete them
      2  refused, all or in part; another run would refuse it again
    """
    from spark_jobs.sweeps.partition_removal_sweep import JOB, run

    config = options.SweepConfig(_options(call, given), grace_ms)
    raise typer.Exit(_run(JOB, config, run, call))


def _options(call: Call, given: dict[str, Any]) -> options.SweepOptions:
    _require_installed(given["engine"])
    rsm, rlmm = call.address("rsm"), call.address("rlmm")
    security = call.security_options([rsm, rlmm])
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
        with progress(is_first_printed=True) as show:
            report = launch(job, config, run_job, lambda text: show(f"{job}: {text}"), document)
    except SweepError as e:
        raise CommandError(str(e), e.exit_code) from e
    if not call.is_json:
        _print(report, call.is_wide)
    return report.exit_code


def _print(report: "SweepReport", is_wide: bool) -> None:
    header, totals = report.header, report.totals
    if report.largest:
        title = f"{header.job}, plan {header.plan_id}"
        columns = ("partition", "outcome", "planned", "deleted", "failed")
        wide = map(Wide, ("refused", "planned size"))
        rows = map(_as_row, report.largest)
        print_tables((title, (*columns, *wide), rows), is_wide=is_wide)
    for reason, partitions in sorted(totals.skipped.items()):
        say(f"{counted(partitions, 'partition')} skipped: {reason}")
    for partition in report.largest:
        error = None if partition["error"] in report.errors else partition["error"]
        for why in filter(None, (*partition["notes"], error)):
            say(f"{_name(partition)}: {why}")
    for error, segments in report.errors.items():
        say(f"{counted(segments, 'segment')}: {error}")
    if header.refusal is not None:
        say(f"sediment: {header.refusal}")
    counts = totals.as_json()
    kinds = ("deleted", "deleted_by_another", "refused", "failed")
    ends = (f"{counts[f'{kind}_segments']} {kind.replace('_', ' ')}" for kind in kinds)
    done = (
        f"{', '.join(ends)}, in {counted(totals.partitions, 'partition')}, "
        f"{counts['unfinished_partitions']} of them unfinished"
    )
    say(
        f"{report.outcome}: {sized(counts['planned_segments'], counts['planned_bytes'])} planned; "
        f"{done if header.apply else 'dry run, nothing was changed'}"
    )


def _as_row(partition: dict[str, Any]) -> tuple[object, ...]:
    keys = ("planned_segments", "deleted_segments", "failed_segments", "refused_segments")
    counts = (partition[key] for key in keys)
    planned = size_text(partition["planned_bytes"])
    return (_name(partition), partition["outcome"], *counts, planned)


def _name(partition: dict[str, Any]) -> str:
    return f"{partition['topic']}-{partition['partition']}"
