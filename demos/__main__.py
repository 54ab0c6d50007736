"""`python -m demos`: show Sediment on real servers; one module per demonstration."""

from pathlib import Path
from typing import Annotated

import typer

from services.cli.connections import OUTPUT
from services.cli.output import Format, reported

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Show Sediment on real servers of its own.",
)


@app.command()
def ship(
    log_dir: Annotated[Path, typer.Option(help="The Kafka log to ship; it is only read.")],
    output: Format = OUTPUT,
) -> None:
    """Ship a Kafka log, lose it locally, read every batch back.

    On servers of its own that end with it, over links: the log itself is only read. Exit code 0:
    all of it came back as it was. 1: some of it is blocked or did not, and is named. 2: the log
    directory cannot be used. 3: the demo failed.
    """
    from demos.ship import run

    raise typer.Exit(run(log_dir, output))


@app.command()
def sweep(
    log_dir: Annotated[Path, typer.Option(help="The Kafka log to ship; it is only read.")],
) -> None:
    """Ship a Kafka log, then expire and remove parts on Spark.

    On servers of its own that end with it, over links. Exit code 0: what had to go is gone, and
    tables and bucket agree. 1: they do not. 2: the log directory cannot be used. 3: the demo
    failed.
    """
    from demos.sweep import run

    raise typer.Exit(run(log_dir))


@app.command()
def kafka(
    plugin: Annotated[Path, typer.Option(help="The plugin's jar; `make plugin` builds it.")],
    kafka: Annotated[Path, typer.Option(help="A directory with the jars of a Kafka broker.")],
    output: Format = OUTPUT,
) -> None:
    """Show a Kafka broker that keeps its tier here.

    On servers and a broker of its own that end with it. Needs Java and the extra `kafka-demo`.
    Exit code 0: everything was as it should be. 1: something was not, and is named. 2: the jar or
    the directory cannot be used. 3: the demo failed.
    """
    from demos.kafka import run

    raise typer.Exit(run(plugin, kafka, output))


@app.command()
def broker(
    kafka: Annotated[Path, typer.Option(help="A directory with the jars of a Kafka broker.")],
    output: Format = OUTPUT,
) -> None:
    """Show RLM beside a stock Kafka broker.

    On servers and a broker of its own that end with it. Needs Java and the extra `kafka-demo`.
    Exit code 0: everything was as it should be. 1: a record differs or is missing, or something
    else was not so, and is named. 2: the directory cannot be used. 3: the demo failed.
    """
    from demos.broker import run

    raise typer.Exit(run(kafka, output))


if __name__ == "__main__":
    with reported():
        app()
