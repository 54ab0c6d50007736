"""Check the object store as RSM would: `sediment store`."""

import os
from collections.abc import Iterator, Sequence

import typer

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.cli.config import configured_services, rsm_settings_of
from services.cli.connections import Call, command_group, with_services
from services.cli.output import EXIT_PARTIAL, CommandError
from services.local.data_directory import default_directory, running_stack
from services.rsm.factory import build_locations, build_start_up
from services.rsm.probe import WITHOUT, ProbeReport, RuleLevel
from services.rsm.settings import RsmSettings
from services.rsm.startup import StartUp

app = command_group("Check the object store behind RSM.")


@app.command()
@with_services(has_data_dir=True)
def probe(call: Call) -> None:
    """Test which features the store of RSM has, and what it does by itself.

    Reads RSM's settings from the environment (RSM_*); without any, those of the running
    `sediment up`. Writes a few test objects below the prefix and deletes them again; writes
    nothing if the prefix belongs to another deployment.

    \b
    Exit codes:
      1  RSM would refuse the store, or the store deletes segments by itself
    """
    start_up = _start_up(call)
    try:
        report = start_up.inspect()
    except RetriableRemoteStorageError:
        raise
    except RemoteStorageError as e:
        refusal = f"RSM would refuse this store: {e}"
        call.show({"usable": False, "problem": str(e)}, lines=[refusal])
        raise typer.Exit(EXIT_PARTIAL) from e
    columns = ("capability", "", "outcome", "time", "detail")
    table = (report.location.place, columns, _rows(report))
    call.show(report.as_json(), table, lines=_lines(report))
    is_losing = any(rule.level is RuleLevel.CRITICAL for rule in report.rules)
    raise typer.Exit(EXIT_PARTIAL if report.refused or is_losing else 0)


def _start_up(call: Call) -> StartUp:
    settings = store_settings(call)
    try:
        return build_start_up(settings, build_locations(settings))
    except SystemExit as e:
        raise CommandError("; ".join(str(e).splitlines())) from e


def store_settings(call: Call) -> RsmSettings:
    """Return RSM's settings from the environment, else those of the running `sediment up`."""
    has_settings = "RSM" in configured_services(os.environ)
    stack = None if has_settings else running_stack(call.data_dir)
    if stack is None and not has_settings:
        raise CommandError(
            "no store is known: set RSM_BACKEND and the other settings of RSM, or run it beside a "
            f"`sediment up`; none is running on {call.data_dir or default_directory()}"
        )
    try:
        return RsmSettings.from_environment() if stack is None else rsm_settings_of(stack)
    except SystemExit as e:
        raise CommandError("; ".join(str(e).splitlines())) from e


def _rows(report: ProbeReport) -> Iterator[Sequence[object]]:
    for each in report.findings:
        required = "required" if each.capability in report.required else ""
        yield each.capability, required, each.outcome, f"{each.took_ms:.0f} ms", each.detail


def _lines(report: ProbeReport) -> Iterator[str]:
    for finding in report.degraded:
        yield f"without {finding.capability}: {WITHOUT[finding.capability]}"
    for rule in report.rules:
        yield f"{rule.level.value.lower()}: {rule.text}"
    if report.refused:
        yield "RSM would refuse this store"
