"""Print a script that completes what a person types, and find words for it: `completion`."""

import signal
from enum import StrEnum
from typing import Any, NoReturn

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]  # in no __all__

from services.api.topic_config import MEANINGS
from services.cli.command import argument
from services.cli.connections import Call, command_group
from services.cli.main import COMPLETE_VARIABLE
from services.cli.names import find_topic, known_topics
from services.cli.security import choose_security
from services.views.texts import partition_text

app = command_group()

_TIMEOUT_S = 1.0


class Shell(StrEnum):
    """A shell that can complete."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command()
def completion(
    shell: Shell = argument("The shell to write the script for.", metavar="SHELL"),
) -> None:
    """Print a script that completes commands, options and names.

    Write it into the directory of the shell's completions. Topics, partitions and settings are
    those of the deployment that the command would use.

    \b
    bash  ~/.local/share/bash-completion/completions/sediment
    zsh   _sediment in a directory of fpath
    fish  ~/.config/fish/completions/sediment.fish
    """
    script = get_completion_script(
        prog_name="sediment", complete_var=COMPLETE_VARIABLE, shell=shell.value
    )
    typer.echo(script)


def deployed_words(kind: str, context: typer.Context) -> list[str]:
    """Return the words of a kind that the deployment has; none if it is away or slow.

    Args:
        kind: TOPIC, TOPIC-PARTITION, KEY=VALUE (the settings that there are) or KEY (those of the
            topic).
    """
    if kind == "KEY=VALUE":
        return [f"{name}=" for name in MEANINGS]
    signal.signal(signal.SIGALRM, _end)
    signal.setitimer(signal.ITIMER_REAL, _TIMEOUT_S)
    try:
        choose_security(**context.find_root().params)
        return _words(kind, context.params, context.args)
    except Exception:  # noqa: BLE001 - a person who types sees no failure of a suggestion
        return []
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _end(*_: object) -> NoReturn:
    raise TimeoutError


def _words(kind: str, typed: dict[str, Any], rest: list[str]) -> list[str]:
    call = Call(rlmm=typed.get("rlmm"), data_dir=typed.get("data_dir"))
    with call.rlmm_client() as manager:
        if kind == "KEY":
            return [*manager.topic_config(find_topic(manager, rest[0]).topic_id).entries]
        topics = known_topics(manager)
    if kind == "TOPIC":
        return [topic.name for topic in topics]
    return [partition_text(p.topic_id_partition) for topic in topics for p in topic.partitions]
