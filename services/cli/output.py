"""Print tables for people, JSON for scripts, progress and failures.

Commands print only through this file: names, reasons, keys and values come from outside, and are
shown without the characters that a terminal would obey.
"""

import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from types import TracebackType
from typing import TypeAlias

from services.api.errors import (
    InvalidRangeError,
    InvalidRequestError,
    NotServedError,
    PermissionDeniedError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    StoreAccessDeniedError,
    StoreNotFoundError,
    UnauthenticatedError,
)
from services.cli.standard_output import OutputError
from services.cli.tables import cut, cut_mark, table_lines
from services.common.printable import json_line, printable

EXIT_PARTIAL = 1
EXIT_USAGE = 2
EXIT_FAILED = 3
EXIT_REFUSED = 4

EXIT_CODES = {
    0: "done",
    EXIT_PARTIAL: "done in part, or there are problems; each is named",
    EXIT_USAGE: "cannot be done as typed: the command line or a setting is wrong, something does "
    "not exist, or you lack a role; nothing was changed",
    EXIT_FAILED: "a service, the database or the store is away or failed; run the command again",
}
"""Of all commands, unless a command's own help has others."""

_NOT_AS_TYPED = (
    InvalidRequestError,
    InvalidRangeError,
    RemoteResourceNotFoundError,
    UnauthenticatedError,
    PermissionDeniedError,
    NotServedError,
    StoreNotFoundError,
    StoreAccessDeniedError,
)
"""Failures that the same command would have again."""

_PROGRESS_S = 60.0
_REDRAWN_S = 0.1
WATCHED_S = 5.0
"""Between two lines of a command that a person waits for."""

Table: TypeAlias = tuple[str, Sequence[str], Iterable[Sequence[object]]]
"""Title, columns and rows."""
Cells: TypeAlias = Mapping[str, object]
"""A row of a list: each cell under the head of its column, of which all rows have the same."""


class Format(StrEnum):
    """The output format of a command."""

    TABLE = "table"
    WIDE = "wide"
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


def print_tables(*tables: Table, is_wide: bool = False) -> None:
    """Print tables below their titles, if they have some; in a terminal as wide as that.

    Elsewhere, and with `is_wide`, nothing is cut or wrapped.
    """
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() and not is_wide else None
    for number, (title, columns, rows) in enumerate(tables):
        if number:
            print()
        lines = table_lines(
            columns, rows, is_wide=is_wide, width=width, encoding=sys.stdout.encoding
        )
        print(*filter(None, (printable(title),)), *(lines or ["none"]), sep="\n")


def say(text: str) -> None:
    """Print one line for people on standard error."""
    print(printable(text), file=sys.stderr, flush=True)


@contextmanager
def progress(
    *, every_s: float = _PROGRESS_S, is_first_printed: bool = False
) -> Iterator[Callable[[str], None]]:
    """Show on standard error how far a command is; yield the call that sets the text.

    On a terminal the text, which may have several lines, is updated in place. Elsewhere a line is
    printed.

    Args:
        every_s: elsewhere, the time between two lines.
        is_first_printed: elsewhere, print the first text at once.
    """
    is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    next_s = 0.0 if is_first_printed or is_terminal else time.monotonic() + every_s
    erase = ""

    def show(text: str) -> None:
        nonlocal next_s, erase
        if time.monotonic() < next_s:
            return
        next_s = time.monotonic() + (_REDRAWN_S if is_terminal else every_s)
        if not is_terminal:
            say(text)
            return
        columns, height = shutil.get_terminal_size()
        lines = text.split("\n")[: height - 1]
        mark = cut_mark(sys.stderr.encoding)
        shown = [cut(printable(line), columns - 1, mark) for line in lines]
        print(erase, "\n".join(shown), sep="", end="", file=sys.stderr, flush=True)
        erase = f"\x1b[{len(shown) - 1}F\x1b[J" if len(shown) > 1 else "\r\x1b[J"

    try:
        yield show
    finally:
        print(erase, end="", file=sys.stderr, flush=True)


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

    if isinstance(error, (*_NOT_AS_TYPED, DataDirectoryError, ClusterError, LogDirError)):
        return EXIT_USAGE
    failures = RemoteStorageError | ProcessError | OutputError
    return EXIT_FAILED if isinstance(error, failures) else None


def _next_step(error: Exception) -> str:
    """Return the command that helps if a service did not answer at all; else an empty text."""
    import grpc

    from services.rpc.statuses import is_unanswered

    is_away = isinstance(error.__cause__, grpc.RpcError) and is_unanswered(error.__cause__)
    return "; `sediment doctor` shows which services answer" if is_away else ""


def _exit(error: Exception, exit_code: int, next_step: str = "") -> None:
    print(f"sediment: {printable(str(error))}{next_step}", file=sys.stderr)
    raise SystemExit(exit_code)


def print_traceback(
    kind: type[BaseException], error: BaseException, origin: TracebackType | None
) -> None:
    """Print the traceback of a defect of ours, which may contain text from outside."""
    for line in "".join(traceback.format_exception(kind, error, origin)).splitlines():
        print(printable(line), file=sys.stderr)
