"""`sediment store`: the object store, as RSM would find it."""

import typer

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.cli.connections import JsonOrTable
from services.cli.output import EXIT_PARTIAL, CommandError, Format, print_json, print_table, say
from services.rsm.factory import build_locations, build_start_up
from services.rsm.probe import WITHOUT, ProbeReport
from services.rsm.settings import RsmSettings
from services.rsm.startup import StartUp


def probe_store(output: Format) -> int:
    """The exit code."""
    start_up = _start_up()
    try:
        report = start_up.inspect()
    except RetriableRemoteStorageError:
        raise
    except RemoteStorageError as e:
        if output is Format.JSON:
            print_json({"usable": False, "problem": str(e)})
        else:
            say(f"RSM would refuse this store: {e}")
        return EXIT_PARTIAL
    if output is Format.JSON:
        print_json(report.as_json())
    else:
        _print(report)
    return EXIT_PARTIAL if report.refused else 0


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
    print_table(report.place, ("capability", "", "outcome", "time", "detail"), rows)
    for finding in report.degraded:
        say(f"without {finding.capability}: {WITHOUT[finding.capability]}")
    if report.refused:
        say("RSM would refuse this store")


store = typer.Typer(no_args_is_help=True, help="The object store behind RSM.")


@store.command()
def probe(output: JsonOrTable = Format.TABLE) -> None:
    """Try what RSM's store can do, with RSM's settings from the environment (RSM_*).

    On objects of its own below the prefix, which it removes; nothing is marked, and nothing is
    written where there is another deployment's marker. Exit code 0: RSM would use it, though
    perhaps with less. 1: RSM would refuse it. 2: the settings cannot be used. 3: the store could
    not be reached.
    """
    pass

    raise typer.Exit(probe_store(output))
