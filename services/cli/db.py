"""`sediment db`: the metadata database, its schema and its upkeep."""

from dataclasses import asdict
from typing import Annotated

import typer

from services.api.ids import uuid_to_text
from services.cli.connections import JsonOrTable
from services.cli.output import EXIT_PARTIAL, Format, counter, print_json, print_table, say
from services.rlmm.maintenance import MaintenancePlan, maintain
from services.rlmm.schema import (
    ROLE,
    ReaderRole,
    check_schema,
    current_revision,
    deployment_id,
    known_revision,
    upgrade,
)

_STEPS = {
    "tombstones": "rows of deleted segments purged",
    "request_outcomes": "request ids forgotten",
    "events": "old events purged",
    "anomalies": "anomalies forgotten that no run sees any more",
}


def upgrade_schema(database_url: str, output: Format) -> None:
    role = upgrade(database_url)
    if output is Format.JSON:
        deployment = uuid_to_text(deployment_id(database_url))
        revision = current_revision(database_url)
        print_json({"revision": revision, "deployment_id": deployment, "reader_role": role})
    say(f"schema is at {known_revision()}")
    if role is ReaderRole.MISSING:
        say(
            f"no role {ROLE} for reports: this user may not create roles. Let an administrator run "
            f"CREATE ROLE {ROLE} NOLOGIN, then upgrade again"
        )


def show_revision(database_url: str, output: Format) -> None:
    current, known = current_revision(database_url), known_revision()
    if output is Format.JSON:
        print_json({"current": current, "known": known})
    else:
        print(f"database: {current or 'no schema'}\nthis release: {known}")


def show_deployment_id(database_url: str, output: Format) -> None:
    text = uuid_to_text(deployment_id(database_url))
    if output is Format.JSON:
        print_json({"deployment_id": text})
    else:
        print(text)


def check_database(database_url: str, output: Format) -> int:
    """The exit code."""
    problems = check_schema(database_url)
    if output is Format.JSON:
        print_json({"problems": [asdict(problem) for problem in problems]})
    elif problems:
        rows = [(problem.what, problem.problem) for problem in problems]
        print_table("Not as this release expects it", ("what", "problem"), rows)
    else:
        say("the database is as this release expects it")
    return EXIT_PARTIAL if problems else 0


def maintain_database(
    database_url: str,
    delete_retention_ms: int,
    events_days: int,
    anomalies_days: int,
    output: Format,
) -> None:
    plan = MaintenancePlan(delete_retention_ms, events_days, anomalies_days)
    with counter() as show:
        report = maintain(database_url, plan, lambda step, rows: show(_STEPS[step], rows))
    if output is Format.JSON:
        print_json(asdict(report))
    elif report.already_running:
        say("another maintenance of this database is under way; nothing was done here")
    else:
        rows = [(text, getattr(report, step)) for step, text in _STEPS.items()]
        print_table("Maintenance", ("what", "rows"), rows)


db = typer.Typer(no_args_is_help=True, help="The metadata database: its schema and its upkeep.")

_DatabaseUrl = Annotated[
    str,
    typer.Option(envvar="RLMM_DATABASE_URL", help="postgresql://USER:PASSWORD@HOST:PORT/NAME"),
]


@db.command("upgrade")
def upgrade_command(database_url: _DatabaseUrl, output: JsonOrTable = Format.TABLE) -> None:
    """Bring the schema to this release's; safe to run twice.

    Also from two places at once: one waits for the other. Services of the release before go on
    meanwhile. Exit code 0: it is there. 2: not the URL of a database. 3: the database could not be
    reached, or a lock was not free in time; run it again.
    """
    pass

    upgrade_schema(database_url, output)


@db.command("current")
def current_command(database_url: _DatabaseUrl, output: JsonOrTable = Format.TABLE) -> None:
    """Show which revision of the schema a database has, and which this release needs."""
    pass

    show_revision(database_url, output)


@db.command("deployment-id")
def deployment_id_command(database_url: _DatabaseUrl, output: JsonOrTable = Format.TABLE) -> None:
    """Show the id that this deployment's objects are marked with; RSM takes it as a setting.

    It is made by `upgrade`, once. Exit code 0: shown. 3: the database could not be reached, or has
    no id yet.
    """
    pass

    show_deployment_id(database_url, output)


@db.command("check")
def check_command(database_url: _DatabaseUrl, output: JsonOrTable = Format.TABLE) -> None:
    """Compare a database with what this release expects; changes nothing.

    Exit code 0: all is as expected. 1: something is not, and is named. 3: the database could not be
    reached.
    """
    pass

    raise typer.Exit(check_database(database_url, output))


@db.command("maintain")
def maintain_command(
    database_url: _DatabaseUrl,
    delete_retention_ms: Annotated[
        int,
        typer.Option(min=0, help="How long rows of deleted segments stay (delete.retention.ms)."),
    ] = 86_400_000,
    events_days: Annotated[
        int, typer.Option(min=1, help="How far the audit trail goes back at least, days.")
    ] = 90,
    anomalies_days: Annotated[
        int, typer.Option(min=1, help="How long an anomaly stays that no run sees any more, days.")
    ] = 90,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Purge what nobody needs any more; safe beside traffic, at any time and twice at once.

    Rows of deleted segments, request ids older than a day, the oldest events, anomalies that are
    not seen any more. Exit code 0: done, or another one is at it. 3: the database could not be
    reached; what was purged is purged.
    """
    pass

    maintain_database(database_url, delete_retention_ms, events_days, anomalies_days, output)
