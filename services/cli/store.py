"""Check the object store as RSM would: `sediment store`."""

import typer

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.cli.connections import Call, command_group, with_services
from services.cli.output import EXIT_PARTIAL, CommandError, print_json, print_table, say
from services.rsm.factory import build_locations, build_start_up
from services.rsm.probe import WITHOUT, ProbeReport, RuleLevel
from services.rsm.settings import RsmSettings
from services.rsm.startup import StartUp

app = command_group("Check the object store behind RSM.")


@app.command()
@with_services()
def probe(call: Call) -> None:
    """Test which features the store of RSM has, and what it does by itself.

    Reads RSM's settings from the environment (RSM_*). Writes a few test objects below the prefix
    and deletes them again; writes nothing if the prefix belongs to another deployment.

    \b
    Exit codes:
      1  RSM would refuse the store, or the store deletes segments by itself
    """
    start_up = _start_up()
    try:
        report = start_up.inspect()
    except RetriableRemoteStorageError:
        raise
    except RemoteStorageError as e:
        if call.is_json:
            print_json({"usable": False, "problem": str(e)})
        else:
            say(f"RSM would refuse this store: {e}")
        raise typer.Exit(EXIT_PARTIAL) from e
    if call.is_json:
        print_json(report.as_json())
    else:
        _print(report)
    is_losing = any(rule.level is RuleLevel.CRITICAL for rule in report.rules)
    raise typer.Exit(EXIT_PARTIAL if report.refused or is_losing else 0)


def _start_up() -> StartUp:
    try:
        settings = RsmSettings.from_environment()
        return build_start_up(settings, build_locations(settings))
    except SystemExit as e:
        raise CommandError(str(e)) from e


def _print(report: ProbeReport) -> None:
    rows = [
        (
            finding.capability,
            "required" if finding.capability in report.required else "",
            finding.outcome,
            f"{finding.took_ms:.0f} ms",
            finding.detail,
        )
        for finding in report.findings
    ]
    print_table(report.location.place, ("capability", "", "outcome", "time", "detail"), rows)
    for finding in report.degraded:
        say(f"without {finding.capability}: {WITHOUT[finding.capability]}")
    for rule in report.rules:
        say(f"{rule.level.value.lower()}: {rule.text}")
    if report.refused:
        say("RSM would refuse this store")
