"""Print a script that completes commands and options in a shell: `sediment completion`."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

import typer
from typer.core import TyperGroup
from typer.main import get_group

from services.cli.connections import command_group
from services.cli.main import COMMANDS, load
from services.cli.main import app as whole_command

app = command_group()

Words = dict[tuple[str, ...], list[str]]
"""The commands and options that may follow, by the commands before them."""


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
    write = {Shell.BASH: bash_script, Shell.ZSH: zsh_script, Shell.FISH: fish_script}[shell]
    typer.echo(write(all_words()))


def all_words() -> Words:
    """Return what may follow each command."""
    words: Words = {(): [*COMMANDS, *_options(get_group(whole_command))]}
    for name in COMMANDS:
        command = load(name)
        words[name,] = _options(command)
        if isinstance(command, TyperGroup):
            words[name,] += command.commands
            for inner, each in command.commands.items():
                words[name, inner] = _options(each)
    return words


def _options(command: object) -> list[str]:
    parameters = getattr(command, "params", [])
    found = [opt for each in parameters for opt in each.opts if opt.startswith("--")]
    return [*found, "--help"]


_BASH = """\
_sediment() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" path="" words="" number
    for ((number = 1; number < COMP_CWORD; number++)); do
        case "$path ${{COMP_WORDS[number]}}" in
{paths}
        esac
    done
    case "$path" in
{words}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    if ((${{#COMPREPLY[@]}} == 0)); then
        COMPREPLY=($(compgen -f -- "$current"))
    fi
}}
complete -o filenames -F _sediment sediment"""


def bash_script(words: Words) -> str:
    paths = [" ".join(["", *path]) for path in words if path]
    known = "|".join(f'"{path}"' for path in paths)
    cases = (
        f'        "{" ".join(["", *path]).rstrip()}") words="{" ".join(found)}" ;;'
        for path, found in words.items()
    )
    first = f'            {known}) path="$path ${{COMP_WORDS[number]}}" ;;'
    return _BASH.format(paths=first, words="\n".join(cases))


def zsh_script(words: Words) -> str:
    """Return the script of bash, which zsh's bashcompinit runs."""
    return f"#compdef sediment\nautoload -U +X bashcompinit && bashcompinit\n{bash_script(words)}"


def fish_script(words: Words) -> str:
    return "\n".join(_fish_lines(words))


def _fish_lines(words: Words) -> Iterator[str]:
    for path, found in words.items():
        seen = [f"__fish_seen_subcommand_from {name}" for name in path]
        inner = [name for name in found if not name.startswith("--")]
        if inner:
            seen.append(f"not __fish_seen_subcommand_from {' '.join(inner)}")
        condition = f"-n '{'; and '.join(seen)}' " if seen else ""
        for name in found:
            what = f"-l {name[2:]}" if name.startswith("--") else f"-f -a {name}"
            yield f"complete -c sediment {condition}{what}"
