"""`sediment store`: the object store, as RSM would find it."""

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.cli.failures import EXIT_PARTIAL, CommandError
from services.cli.output import Format, print_json, print_table, say
from services.rsm.capabilities import WITHOUT, ProbeReport
from services.rsm.factory import build_locations, build_start_up
from services.rsm.settings import RsmSettings
from services.rsm.start_up import StartUp


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
