"""Assemble the command `sediment` from the files of its commands.

A command's file is imported when the command runs: `sediment --help` must not wait for gRPC.
"""

import itertools
import os
import sys
import textwrap
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any

import typer
from typer.completion import completion_init  # type: ignore[attr-defined]  # in no __all__
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from services.cli.command import Group, mistake_text
from services.cli.output import EXIT_CODES, CommandError, reported
from services.cli.security import choose_security
from services.cli.standard_output import guard_standard_output

COMPLETE_VARIABLE = "_SEDIMENT_COMPLETE"
"""Set by the scripts of `sediment completion`, which request the words that may follow."""

GROUPS = {
    "Look": {
        "status": ("status", "Show on one screen whether the tier is well."),
        "doctor": ("doctor", "Check settings, clocks, bucket, database and certificates."),
        "top": ("top", "Show topics with tier, growth and lag, live."),
        "console": ("console", "Serve a page about the tier to a browser here."),
        "partitions": ("partitions", "Show what an RLM ships and serves; repair a partition."),
        "segments": ("segments", "List a partition's segments in the tier."),
        "events": ("segments", "Show who changed a partition, when and why."),
        "explain": ("explain", "Explain why a segment is kept, expires or was deleted."),
        "retention": ("retention", "Show what retention would delete now."),
        "offsets": ("offsets", "Show where a partition's log starts and ends, and find times."),
        "fetch": ("fetch", "Print records from the tier and from local disk."),
        "usage": ("usage", "Show what the tier holds and costs."),
        "anomalies": ("reconcile", "List the problems that reconcile and scrub found."),
        "verified": ("verify", "Show what was verified of each topic, and how long ago."),
        "metadata": ("metadata", "Read the metadata of Kafka's own RemoteLogMetadataManager."),
    },
    "Change": {
        "topics": ("topics", "List, configure and delete topics."),
        "deletions": ("deletions", "Confirm deletions that are too large for one day."),
        "holds": ("holds", "Keep offsets from deletion, and list what is kept."),
        "ship": ("ship", "Copy every rolled segment that is not in the tier yet, once."),
        "sweep": ("sweep", "Expire segments or remove partitions in bulk."),
        "copy": ("copy", "Copy finished segments to another layout, and verify each."),
        "drain": ("drain", "Let an RLM finish copies and deletions and start none."),
    },
    "Repair": {
        "reconcile": ("reconcile", "Compare the object store with the metadata."),
        "scrub": ("reconcile", "Read stored segments and verify their checksums."),
        "verify": ("verify", "Read a partition's segments and verify their checksums."),
        "restore": ("restore", "Restore partitions from the tier into a broker's log directory."),
        "keys": ("keys", "Show which keys of RSM's ring are in use, and rewrap data keys."),
        "db": ("db", "Create, check, maintain and rebuild the metadata database."),
    },
    "Run": {
        "up": ("up", "Run PostgreSQL, an object store and the services on this machine."),
        "selftest": ("selftest", "Copy a small segment, look it up, read it back and delete it."),
        "store": ("store", "Check the object store behind RSM."),
        "policy": ("policy", "Check a policy file and show what it grants."),
        "config": ("config", "Check a file of settings."),
        "completion": ("completion", "Print a script that completes commands, options and names."),
    },
}
"""Each command with its file and the first sentence of its help, by what it is for."""

COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}


def load(name: str) -> TyperCommand | TyperGroup:
    """Import a command from its file."""
    file, _ = COMMANDS[name]
    group = get_group(import_module(f"services.cli.{file}").app)
    command = group.commands.get(name, group)
    assert isinstance(command, TyperCommand | TyperGroup)
    return command


OPTIONS_OF_COMMANDS = {
    *("-o", "--output", "--rsm", "--rlmm", "--rlm", "--data-dir"),
    *("--database-url", "--database-password-file"),
}
"""What many commands have; each takes a value, and may also stand in front of the command."""


class LazyGroup(Group):
    """Show the commands of the table in the help, and import the one that is called."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self._in_place(args))

    def _in_place(self, args: Sequence[str]) -> list[str]:
        """Put our own options in front of the command, and its options behind it."""
        own = {flag: param for param in self.params for flag in param.opts}
        first, command, last = list[str](), list[str](), list[str]()
        words = iter(args)
        for word in words:
            if word == "--":
                last += ["--", *words]
                break
            flag, equals, _ = word.partition("=")
            place = first if flag in own else last if flag in OPTIONS_OF_COMMANDS else command
            place.append(word)
            is_switch = flag in own and getattr(own[flag], "is_flag", False)
            if place is not command and not equals and not is_switch:
                place += [value for value in (next(words, None),) if value is not None]
        return [*first, *command, *last] if command else first

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in commands.items()])

    def resolve_command(
        self, ctx: Any, args: list[str]
    ) -> tuple[str | None, TyperCommand | TyperGroup | None, list[str]]:
        name, _, rest = super().resolve_command(ctx, args)
        return name, load(name) if name else None, rest

    def main(self, *args: Any, **settings: Any) -> Any:
        is_standalone = settings.get("standalone_mode", True)
        run = partial(super().main, *args, **(settings | {"standalone_mode": False}))
        if not is_standalone:
            return run()
        with reported():
            try:
                code = run()
            except typer.Abort as e:
                raise CommandError("nothing was changed") from e
            except typer.TyperException as e:
                raise CommandError(mistake_text(e)) from e
        sys.exit(code if isinstance(code, int) else 0)


def _exit_codes() -> str:
    lines = (
        textwrap.wrap(f"{code}  {text}", 76, subsequent_indent=" " * 5, initial_indent="  ")
        for code, text in EXIT_CODES.items()
    )
    return "\n".join(itertools.chain(*lines))


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # importing rich and a Markdown parser costs 0.2 s
    help="Tiered storage for Kafka: ship segments, read them, inspect and repair the tier.\n\n"
    "`sediment COMMAND --help` shows a command's options and examples. The options below may stand "
    "behind the command, too.\n\n"
    "\b\nExit codes, unless a command's own help has others:\n" + _exit_codes(),
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
