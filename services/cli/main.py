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
    rich_markup_mode=None,  # its help would import rich and a Markdown parser, 0.2 s of nothing
    help="Kafka tiered storage as services: ship segments, look at the tier, read it.",
)
db = typer.Typer(no_args_is_help=True, help="The metadata database's schema.")
app.add_typer(db, name="db")

LogDirs = Annotated[
    list[Path],
    typer.Argument(metavar="LOG_DIR...", help="Kafka log directories: the broker's log.dirs."),
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
    """Run PostgreSQL, an S3 server and the services right here.

    In the foreground, until Ctrl-C or SIGTERM. The data is kept.
    """
    from services.cli.up import run

    run(log_dir or [], data_dir, fresh, output)


@app.command()
def demo(
    log_dir: Annotated[Path, typer.Option(help="The Kafka log to ship; it is only read.")],
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Ship a Kafka log, lose it locally, read every batch back.

    On servers of its own that end with it, over links: the log itself is only read. Exit code 0:
    all of it came back as it was. 1: some of it was held back or did not, and is named. 2: the log
    directory cannot be used. 3: the demo could not go on.
    """
    from services.cli.demo import run

    raise typer.Exit(run(log_dir, output))


@app.command()
def ship(
    log_dirs: LogDirs,
    rsm: Rsm = None,
    rlmm: Rlmm = None,
    data_dir: DataDir = None,
    retry_for_s: Annotated[
        float,
        typer.Option(min=0, help="How long to try again while a service is away, seconds."),
    ] = 60.0,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Copy every rolled segment that is not in the tier yet, once.

    Exit code 0: all of them are there. 1: some are held back, and named. 2: the log directory
    cannot be used. 3: a service could not be reached in time; run it again.
    """
    from services.cli.ship import run

    raise typer.Exit(run(log_dirs, rsm, rlmm, data_dir, retry_for_s, output))


@app.command()
def partitions(
    rlm: Rlm = None, data_dir: DataDir = None, output: JsonOrTable = Format.TABLE
) -> None:
    """Show what an RLM ships and serves: local, remote, held back."""
    from services.cli.partitions import run

    run(rlm, data_dir, output)


@app.command()
def segments(
    topic_partition: TopicPartition,
    rlmm: Rlmm = None,
    data_dir: DataDir = None,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Show a partition's segments in the tier, in any state."""
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
    """Print records, as a console consumer, wherever they lie."""
    from services.cli.fetch import run

    run(topic_partition, offset, max_records, rlm, rlmm, data_dir, output)


@db.command()
def upgrade(
    database_url: Annotated[
        str, typer.Option(envvar="RLMM_DATABASE_URL", help="postgresql+psycopg://...")
    ],
) -> None:
    """Bring the schema to this release's; safe to run twice.

    Also from two places at once: one waits for the other.
    """
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
