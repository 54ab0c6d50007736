"""The commands of `sediment store` and their options; what they do is in services.cli.store."""

import typer

from services.cli.options import JsonOrTable
from services.cli.output import Format

store = typer.Typer(no_args_is_help=True, help="The object store behind RSM.")


@store.command()
def probe(output: JsonOrTable = Format.TABLE) -> None:
    """Try what RSM's store can do, with RSM's settings from the environment (RSM_*).

    On objects of its own below the prefix, which it removes; nothing is marked, and nothing is
    written where there is another deployment's marker. Exit code 0: RSM would use it, though
    perhaps with less. 1: RSM would refuse it. 2: the settings cannot be used. 3: the store could
    not be reached.
    """
    from services.cli.store import probe_store

    raise typer.Exit(probe_store(output))
