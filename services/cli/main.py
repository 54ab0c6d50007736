"""Assemble the command `sediment` from the files of its commands.

A command's file is imported when the command runs: `sediment --help` must not wait for gRPC.
"""

import os
import sys
from importlib import import_module
from typing import Any

import typer
from typer.completion import completion_init  # type: ignore[attr-defined]  # in no __all__
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from services.cli.security import choose_security
from services.cli.standard_output import guard_standard_output

COMPLETE_VARIABLE = "_SEDIMENT_COMPLETE"
"""Set by the scripts of `sediment completion`, which ask for what may follow."""

# Maps each command to its file and the first sentence of its help.
COMMANDS = {
    "up": ("up", "Run PostgreSQL, an S3 server and the services on this machine."),
    "ship": ("ship", "Copy every rolled segment that is not in the tier yet, once."),
    "fetch": ("fetch", "Print records from the tier and from local disk."),
    "offsets": ("offsets", "Show where a partition's log starts and ends, and find times."),
    "segments": ("segments", "List a partition's segments in the tier."),
    "events": ("segments", "Show who changed a partition, when and why."),
    "explain": ("explain", "Explain why a segment is kept, expires or was deleted."),
    "usage": ("usage", "Show what the tier holds and costs."),
    "retention": ("retention", "Show what retention would delete now."),
    "reconcile": ("reconcile", "Compare the object store with the metadata."),
    "scrub": ("reconcile", "Read stored segments and verify their checksums."),
    "anomalies": ("reconcile", "List the problems that reconcile and scrub found."),
    "verified": ("verify", "Show what was verified of each topic, and how long ago."),
    "verify": ("verify", "Read a partition's segments and verify their checksums."),
    "status": ("status", "Show on one screen whether the tier is well."),
    "top": ("top", "Show topics with tier, growth and what waits, live."),
    "console": ("console", "Serve a page about the tier to a browser here."),
    "drain": ("drain", "Let an RLM finish copies and deletions and start none."),
    "doctor": ("doctor", "Check settings, clocks, bucket, database and certificates."),
    "topics": ("topics", "List, configure and delete topics."),
    "partitions": ("partitions", "Show what an RLM ships and serves; repair a partition."),
    "db": ("db", "Create, check, maintain and rebuild the metadata database."),
    "selftest": ("selftest", "Copy a small segment, look it up, read it back and delete it."),
    "store": ("store", "Check the object store behind RSM."),
    "policy": ("policy", "Check a policy file and show what it grants."),
    "config": ("config", "Check a file of settings."),
    "completion": ("completion", "Print a script that completes commands and options."),
    "sweep": ("sweep", "Expire segments or remove partitions in bulk."),
}


def load(name: str) -> TyperCommand | TyperGroup:
    """Import a command from its file."""
    file, _ = COMMANDS[name]
    group = get_group(import_module(f"services.cli.{file}").app)
    command = group.commands.get(name, group)
    assert isinstance(command, TyperCommand | TyperGroup)
    return command


class LazyGroup(TyperGroup):
    """Show the commands of the table in the help, and import the one that is called."""

    def resolve_command(
        self, ctx: Any, args: list[str]
    ) -> tuple[str | None, TyperCommand | TyperGroup | None, list[str]]:
        name, _, rest = super().resolve_command(ctx, args)
        return name, load(name) if name else None, rest


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # importing rich and a Markdown parser costs 0.2 s
    help="Tiered storage for Kafka: ship segments, read them, inspect and repair the tier.\n\n"
    "\b\nExit codes, unless a command's own --help has others:\n"
    "  0  done\n"
    "  1  done in part, or there are problems; each is named\n"
    "  2  the command line is wrong, or a name is unknown; nothing was changed\n"
    "  3  a service failed, or a role is missing; run the command again",
)

app.callback()(choose_security)

for _name, (_, _help) in COMMANDS.items():
    app.command(_name, help=_help)(lambda: None)


def main() -> None:
    """Run the console script."""
    # gRPC would print a line of its own beside our error when TLS is not agreed on.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    if COMPLETE_VARIABLE in os.environ:
        completion_init()
    try:
        guard_standard_output()
        try:
            app()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        sys.exit(1)  # as typer does: the reader has what it wants
    except Exception:
        from services.cli.output import print_traceback, reported

        sys.excepthook = print_traceback
        with reported():
            raise
