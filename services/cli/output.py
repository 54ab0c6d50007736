"""Tables for people, JSON for scripts; both on standard output, all else on standard error."""

import json
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

# A table that goes into a file or a pipe is as wide as it needs to be.
_WIDTH_OF_NO_TERMINAL = 1_000


class Format(StrEnum):
    """What a command prints."""

    TABLE = "table"
    JSON = "json"


def print_json(value: object) -> None:
    """One JSON document on one line."""
    print(json.dumps(value), flush=True)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table; columns of numbers are set to the right. Nothing is cut off: what is too long for
    the terminal goes on in the next line."""
    from rich.table import Table
    from rich.text import Text

    made = [list(row) for row in rows]
    table = Table(title=Text(title, "bold"), title_justify="left")
    for number, column in enumerate(columns):
        numeric = bool(made) and all(isinstance(row[number], int) for row in made)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in made:
        table.add_row(*(Text(f"{v:,}" if isinstance(v, int) else str(v)) for v in row))
    stdout_console().print(table)


def stdout_console() -> "Console":
    """As wide as the terminal, or as what is printed needs."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _WIDTH_OF_NO_TERMINAL)


def say(text: str) -> None:
    """A line of progress, for people, on standard error."""
    from rich.console import Console

    # Without markup: a path may have brackets in it.
    console = Console(stderr=True, markup=False, emoji=False)
    console.print(text, highlight=False, soft_wrap=True)


def size_text(size_bytes: int) -> str:
    """1536 -> "1.5 KiB"."""
    size, units = float(size_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"
