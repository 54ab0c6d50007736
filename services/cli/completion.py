"""Print a script that completes commands and options in a shell: `sediment completion`."""

from enum import StrEnum
from typing import Annotated

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]  # in no __all__

from services.cli.connections import command_group
from services.cli.main import COMPLETE_VARIABLE

app = command_group()


class Shell(StrEnum):
    """A shell that can complete."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command()
def completion(
    shell: Annotated[Shell, typer.Argument(help="The shell to write the script for.")],
) -> None:
    """Print a script that completes commands and options.

    Write it where the shell looks for completions.

    \b
    bash  ~/.local/share/bash-completion/completions/sediment
    zsh   _sediment in a directory of fpath
    fish  ~/.config/fish/completions/sediment.fish
    """
    script = get_completion_script(
        prog_name="sediment", complete_var=COMPLETE_VARIABLE, shell=shell.value
    )
    typer.echo(script)
