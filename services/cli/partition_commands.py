"""The commands of `sediment partitions` and their options."""

from typing import Annotated

import typer

from services.cli.options import DataDir, JsonOrTable, Rlm, Rlmm, Topic
from services.cli.output import Format

partitions = typer.Typer(invoke_without_command=True)


def _not_blank(text: str) -> str:
    if not text.strip():
        raise typer.BadParameter("say why, for who reads the audit trail")
    return text


_Number = Annotated[int, typer.Argument(metavar="PARTITION", min=0, help="Its number.")]
_Reason = Annotated[
    str,
    typer.Option(
        metavar="TEXT",
        callback=_not_blank,
        help="Why; goes into the audit trail, `sediment events`.",
    ),
]


@partitions.callback()
def show(
    context: typer.Context,
    rlm: Rlm = None,
    data_dir: DataDir = None,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Show what an RLM ships and serves: local, remote, held back. Or put a partition right."""
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    from services.cli.partitions import run

    run(rlm, data_dir, output)


def _refuse_options(context: typer.Context) -> None:
    """They are those of the list: the command behind them would not see them."""
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(
                f"say it behind {context.invoked_subcommand}, where that command has it",
                context,
                param_hint=option.opts[0],
            )


@partitions.command()
def undelete(
    topic: Topic,
    partition: _Number,
    reason: _Reason,
    rlmm: Rlmm = None,
    data_dir: DataDir = None,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Bring back a partition that is marked for deletion.

    Only as long as its removal has not begun. Safe to repeat. Exit code 0: it is not being deleted
    (any more). 2: not known, removed or marked anew meanwhile, or its segments are going already;
    nothing was changed. 3: RLMM could not be reached.
    """
    from services.cli.partition_repairs import undelete

    undelete(topic, partition, reason, rlmm, data_dir, output)


@partitions.command()
def reset_epoch(
    topic: Topic,
    partition: _Number,
    epoch: Annotated[int, typer.Option(min=-1, help="The highest from now on; -1: none is known.")],
    reason: _Reason,
    yes: Annotated[bool, typer.Option("--yes", help="Really do it, unasked.")] = False,
    rlmm: Rlmm = None,
    data_dir: DataDir = None,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Set a partition's highest broker leader epoch, after a broker gave a wrong one.

    Leaders of lower epochs are refused; a wrong one that is too high locks the right leader out,
    and a reset that is too low lets overruled ones in. Shows the present one and asks first, on a
    terminal. Exit code 0: it is set. 2: not known, not agreed to, or another one by then; nothing
    was changed. 3: RLMM could not be reached.
    """
    from services.cli.partition_repairs import reset_epoch

    reset_epoch(topic, partition, epoch, reason, yes, rlmm, data_dir, output)
