"""The commands of `sediment db` and their options; what they do is in services.cli.db."""

from typing import Annotated

import typer

from services.cli.options import JsonOrTable
from services.cli.output import Format

db = typer.Typer(no_args_is_help=True, help="The metadata database: its schema and its upkeep.")

_DatabaseUrl = Annotated[
    str,
    typer.Option(envvar="RLMM_DATABASE_URL", help="postgresql://USER:PASSWORD@HOST:PORT/NAME"),
]


@db.command()
def upgrade(database_url: _DatabaseUrl, output: JsonOrTable = Format.TABLE) -> None:
    """Bring the schema to this release's; safe to run twice.

    Also from two places at once: one waits for the other. Services of the release before go on
    meanwhile. Exit code 0: it is there. 2: not the URL of a database. 3: the database could not be
    reached, or a lock was not free in time; run it again.
    """
    from services.cli.db import upgrade_schema

    upgrade_schema(database_url, output)


@db.command()
def current(database_url: _DatabaseUrl, output: JsonOrTable = Format.TABLE) -> None:
    """Show which revision of the schema a database has, and which this release needs."""
    from services.cli.db import show_revision

    show_revision(database_url, output)


@db.command("deployment-id")
def deployment_id(database_url: _DatabaseUrl, output: JsonOrTable = Format.TABLE) -> None:
    """Show the id that this deployment's objects are marked with; RSM takes it as a setting.

    It is made by `upgrade`, once. Exit code 0: shown. 3: the database could not be reached, or has
    no id yet.
    """
    from services.cli.db import show_deployment_id

    show_deployment_id(database_url, output)


@db.command()
def check(database_url: _DatabaseUrl, output: JsonOrTable = Format.TABLE) -> None:
    """Compare a database with what this release expects; changes nothing.

    Exit code 0: all is as expected. 1: something is not, and is named. 3: the database could not be
    reached.
    """
    from services.cli.db import check_database

    raise typer.Exit(check_database(database_url, output))


@db.command()
def maintain(
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
    find_passable: Annotated[
        bool,
        typer.Option(
            "--find-passable",
            help="Also look at every segment once; after an upgrade from schema 0002.",
        ),
    ] = False,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Purge what nobody needs any more; safe beside traffic, at any time and twice at once.

    Rows of deleted segments, request ids older than a day, the oldest events, anomalies that are
    not seen any more. Exit code 0: done, or another one is at it. 3: the database could not be
    reached; what was purged is purged.
    """
    from services.cli.db import maintain_database

    maintain_database(
        database_url, delete_retention_ms, events_days, anomalies_days, find_passable, output
    )
