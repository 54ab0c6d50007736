"""Print tables for people, JSON for scripts, progress and failures.

Commands print only through this file: names, reasons, keys and values come from outside, and are
shown without the characters that a terminal would obey.
"""

import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING

from services.api.errors import InvalidRequestError, RemoteStorageError
from services.cli.standard_output import OutputError
from services.common.printable import json_line, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

EXIT_PARTIAL = 1
EXIT_USAGE = 2
EXIT_FAILED = 3
EXIT_REFUSED = 4

# A table in a file or a pipe is as wide as its content.
_WIDTH_OF_NO_TERMINAL = 1_000
# Of longer ones that have spaces, those are text, and may be wrapped.
_LONGEST_VALUE = 24


class Format(StrEnum):
    """The output format of a command."""

    TABLE = "table"
    JSON = "json"


def print_json(value: object) -> None:
    """Print one JSON document on one line."""
    print(json_line(value), flush=True)


def print_line(columns: Sequence[str]) -> None:
    """Print a line on standard output: its columns, with tabs between."""
    print("\t".join(map(printable, columns)), flush=True)


def write_bytes(data: bytes) -> None:
    """Write bytes on standard output: unchanged, or printable if it is a terminal."""
    if sys.stdout.isatty():
        lines = data.decode("utf-8", "backslashreplace").split("\n")
        print("\n".join(map(printable, lines)), end="", flush=True)
        return
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table: numbers aligned right, text wrapped between words and never cut off.

    If the terminal is too narrow for that, each row becomes a list of names and values.
    """
    # Here and below, because commands that print JSON must not wait for it.
    from rich.cells import cell_len
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    made = [list(row) for row in rows]
    cells = [[f"{v:,}" if isinstance(v, int) else printable(str(v)) for v in row] for row in made]
    heading = Text(printable(title), "bold")
    table = Table(title=heading, title_justify="left")
    for number, column in enumerate(columns):
        numeric = bool(made) and all(isinstance(row[number], int) for row in made)
        texts = [column, *(row[number] for row in cells)]
        is_text = any(len(text) > _LONGEST_VALUE and " " in text for text in texts)
        table.add_column(
            column,
            justify="right" if numeric else "left",
            overflow="fold",
            no_wrap=not is_text,
            min_width=None if is_text else max(map(cell_len, texts)),
        )
    for row in cells:
        table.add_row(*map(Text, row))
    console = stdout_console()
    unbounded = console.options.update_width(_WIDTH_OF_NO_TERMINAL)
    if Measurement.get(console, unbounded, table).minimum <= console.width:
        console.print(table)
        return
    console.print(heading)
    for row in cells:
        fields = Table.grid(padding=(0, 2))
        fields.add_column(no_wrap=True)
        fields.add_column(overflow="fold")
        for column, cell in zip(columns, row, strict=True):
            fields.add_row(Text(column), Text(cell))
        console.print("", fields, sep="\n")


def stdout_console() -> "Console":
    """Return a console as wide as the terminal, or as its text if there is none."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _WIDTH_OF_NO_TERMINAL)


def say(text: str) -> None:
    """Print one line for people on standard error."""
    from rich.console import Console

    # Without markup, because a path may contain brackets.
    console = Console(stderr=True, markup=False, emoji=False)
    console.print(printable(text), highlight=False, soft_wrap=True)


def bytes_bar() -> "Progress":
    """Return a progress bar, not started yet; it draws on a terminal only."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


@contextmanager
def counter() -> Iterator[Callable[[str, int], None]]:
    """Count on standard error, on a terminal only; yield the call that sets a named count."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = TextColumn("{task.description}", markup=False), MofNCompleteColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        tasks: dict[str, TaskID] = {}

        def show(what: str, count: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(printable(what), total=None)
            bar.update(tasks[what], completed=count)

        yield show


class CommandError(Exception):
    """The command cannot continue; the message has the failure and the remedy."""

    def __init__(self, message: str, exit_code: int = EXIT_USAGE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@contextmanager
def reported() -> Iterator[None]:
    """Print a failure that a user can cause as one line, and exit with its code.

    Any other exception is our defect and keeps its traceback.
    """
    try:
        yield
    except CommandError as e:
        _exit(e, e.exit_code)
    except Exception as e:
        code = _exit_code_of(e)
        if code is None:
            raise
        _exit(e, code, _next_step(e))


def _exit_code_of(error: Exception) -> int | None:
    """Return the exit code of a failure that a user can cause; None for our defects."""
    # They load PostgreSQL's driver and more, which only a command that failed may wait for.
    from services.local.data_directory import DataDirectoryError
    from services.local.postgres import ClusterError
    from services.local.process import ProcessError
    from services.rlm.kafka_log.partition_dir import LogDirError

    if isinstance(error, InvalidRequestError | DataDirectoryError | ClusterError | LogDirError):
        return EXIT_USAGE
    failures = RemoteStorageError | ProcessError | OutputError
    return EXIT_FAILED if isinstance(error, failures) else None


def _next_step(error: Exception) -> str:
    """Return the command that helps if a service did not answer at all; else an empty text."""
    import grpc

    from services.rpc.statuses import is_lost

    is_away = isinstance(error.__cause__, grpc.RpcError) and is_lost(error.__cause__)
    return "; `sediment doctor` shows which services answer" if is_away else ""


def _exit(error: Exception, exit_code: int, next_step: str = "") -> None:
    print(f"sediment: {printable(str(error))}{next_step}", file=sys.stderr)
    raise SystemExit(exit_code)


def print_traceback(
    kind: type[BaseException], error: BaseException, found: TracebackType | None
) -> None:
    """Print the traceback of a defect of ours, which may contain text from outside."""
    for line in "".join(traceback.format_exception(kind, error, found)).splitlines():
        print(printable(line), file=sys.stderr)
