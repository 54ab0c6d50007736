"""`sediment`: the commands and their options; what each does is in the module of its name."""

from pathlib import Path
from typing import Annotated

import typer

from services.cli.options import DataDir, JsonOrTable, Rlm, Rlmm, Rsm, TopicPartition
from services.cli.output import Format

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Kafka tiered storage as services: ship segments, look at the tier, read it.",
)
db = typer.Typer(no_args_is_help=True, help="The metadata database's schema.")
app.add_typer(db, name="db")

LogDirs = Annotated[
    list[Path], typer.Argument(help="A Kafka log directory (one of the broker's log.dirs).")
]


@app.command()
def up(
    log_dir: Annotated[
        list[Path] | None,
        typer.Option(help="A Kafka log directory that RLM ships and serves; may be repeated."),
    ] = None,
    data_dir: DataDir = None,
    fresh: Annotated[bool, typer.Option(help="Forget what an earlier run stored.")] = False,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Run PostgreSQL, an S3 server and the three services here, in the foreground."""
    from services.cli.up import run

    run(log_dir or [], data_dir, fresh, output)


@app.command()
def demo(
    log_dir: Annotated[Path, typer.Option(help="The Kafka log to ship; it is only read.")],
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Ship a Kafka log, lose the local copy, read every batch back from the object store."""
    from services.cli.demo import run

    raise typer.Exit(run(log_dir, output))


@app.command()
def ship(
    log_dirs: LogDirs,
    rsm: Rsm = None,
    rlmm: Rlmm = None,
    data_dir: DataDir = None,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Copy every rolled segment that is not in the tier yet, once.

    Exit code 0: all of them are there. 1: some are held back, and named. 2: the log directory
    cannot be used. 3: a service could not be reached in time; run it again.
    """
    from services.cli.ship import run

    raise typer.Exit(run(log_dirs, rsm, rlmm, data_dir, output))


@app.command()
def partitions(
    rlm: Rlm = None, data_dir: DataDir = None, output: JsonOrTable = Format.TABLE
) -> None:
    """Show the partitions of an RLM: what is local, what is in the tier, what is held back."""
    from services.cli.partitions import run

    run(rlm, data_dir, output)


@app.command()
def segments(
    topic_partition: TopicPartition,
    rlmm: Rlmm = None,
    data_dir: DataDir = None,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Show the segments of a partition in the tier, in any state."""
    from services.cli.segments import run

    run(topic_partition, rlmm, data_dir, output)


@app.command()
def fetch(
    topic_partition: TopicPartition,
    offset: Annotated[int, typer.Option(min=0, help="The first offset to print.")],
    max_records: Annotated[int, typer.Option(min=1, help="Print at most so many.")] = 10,
    rlm: Rlm = None,
    rlmm: Rlmm = None,
    data_dir: DataDir = None,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Print records of a partition, as a console consumer would, wherever they lie."""
    from services.cli.fetch import run

    run(topic_partition, offset, max_records, rlm, rlmm, data_dir, output)


@db.command()
def upgrade(
    database_url: Annotated[
        str, typer.Option(envvar="RLMM_DATABASE_URL", help="postgresql+psycopg://...")
    ],
) -> None:
    """Bring the schema to this release's; safe to run twice, and from two places at once."""
    from services.cli.db import upgrade_schema

    upgrade_schema(database_url)


@db.command()
def current(
    database_url: Annotated[
        str, typer.Option(envvar="RLMM_DATABASE_URL", help="postgresql+psycopg://...")
    ],
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Show which revision of the schema a database has, and which this release needs."""
    from services.cli.db import show_revision

    show_revision(database_url, output)


def main() -> None:
    """The console script."""
    from services.cli.failures import reported

    with reported():
        app()
