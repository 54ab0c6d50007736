"""Tables for people, JSON for scripts; both on standard output, all else on standard error."""

import json
from collections.abc import Iterable, Sequence
from enum import StrEnum


class Format(StrEnum):
    """What a command prints."""

    TABLE = "table"
    JSON = "json"


def print_json(value: object) -> None:
    """One JSON document on one line."""
    print(json.dumps(value), flush=True)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table; columns of numbers are set to the right."""
    from rich.console import Console
    from rich.table import Table

    made = [list(row) for row in rows]
    table = Table(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        numeric = bool(made) and all(isinstance(row[number], int) for row in made)
        table.add_column(column, justify="right" if numeric else "left", no_wrap=number == 0)
    for row in made:
        table.add_row(*(f"{v:,}" if isinstance(v, int) else str(v) for v in row))
    Console().print(table)


def say(text: str) -> None:
    """A line of progress, for people, on standard error."""
    from rich.console import Console

    Console(stderr=True).print(text, highlight=False, soft_wrap=True)


def size_text(size_bytes: int) -> str:
    """1536 -> "1.5 KiB"."""
    size, units = float(size_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"
