"""Lay out tables as plain lines: heads, two spaces between columns, numbers at the right."""

import re
import textwrap
from collections.abc import Iterable, Sequence

from services.common.printable import printable

_GAP = "  "
_BELOW = "    "
_NUMBER = re.compile(r"-?[\d,./]*%?( ([KMGTP]i)?B| min| [a-z])?")
"""Cells of a column that is aligned right: 1,024; 1.5 KiB; 3 min; 50%; -."""
_SHORTEST_CUT = 12
"""Names are not cut to fewer characters."""
_NARROWEST_TEXT = 24
"""Text that would have less room beside the other columns stands below them."""


class Wide(str):
    """The head of a column that is shown only with `-o wide`."""

    __slots__ = ()


def table_lines(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    is_wide: bool = False,
    width: int | None = None,
    encoding: str = "utf-8",
) -> list[str]:
    """Return the lines of a table, the first of which are the heads, unless all are empty.

    Args:
        width: let no line be longer: wrap the text of the last column, and cut names in the middle,
            the longest first. None for one line for each row.
        encoding: has the characters of the lines; those that it lacks become escapes.
    """
    shown = [n for n, head in enumerate(columns) if is_wide or not isinstance(head, Wide)]
    mark = cut_mark(encoding)
    cells = [[_text(row[n], encoding) for n in shown] for row in rows]
    if not cells:
        return []
    is_number = [
        all(map(_NUMBER.fullmatch, column)) and {*column} != {"-"}
        for column in zip(*cells, strict=True)
    ]
    if any(columns):
        cells.insert(0, [columns[n].upper() for n in shown])
    texts = [""] * len(cells)
    if width is not None and not is_number[-1] and any(" " in row[-1] for row in cells):
        texts = [row.pop() for row in cells]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    if width is not None:
        _fit(widths, [n for n in range(len(cells[0])) if not is_number[n]], width)
    longest, lines = max(map(len, texts)), []
    for row, text in zip(cells, texts, strict=True):
        fields = [cut(field, size, mark) for field, size in zip(row, widths, strict=True)]
        aligned = [
            field.rjust(size) if right else field.ljust(size)
            for field, size, right in zip(fields, widths, is_number, strict=False)
        ]
        lines += _with_text(_GAP.join(aligned), text, longest, width or 0)
    return lines


def _with_text(line: str, text: str, longest: int, width: int) -> list[str]:
    """Return a row's line with its text beside it, or below if it has too little room there."""
    if not text:
        return [line.rstrip()]
    beside = line + _GAP
    if len(beside) + min(longest, _NARROWEST_TEXT) <= width:
        indent, lines = " " * len(beside), []
    else:
        beside = indent = _BELOW
        lines = [line.rstrip()]
    wrapped = textwrap.wrap(
        text, width, initial_indent=beside, subsequent_indent=indent, break_on_hyphens=False
    )
    return lines + wrapped


def cut_mark(encoding: str) -> str:
    """Return what stands for the part of a text that is cut."""
    return "…".encode(encoding, "replace").decode(encoding).replace("?", "...")


def cut(text: str, width: int, mark: str) -> str:
    """Cut a text that is longer in the middle: its start and its end tell names apart."""
    kept = width - len(mark)
    if len(text) <= width or kept < 2:
        return text
    return f"{text[: kept - kept // 2]}{mark}{text[len(text) - kept // 2 :]}"


def _text(value: object, encoding: str) -> str:
    text = f"{value:,}" if isinstance(value, int) else printable(str(value))
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _fit(widths: list[int], names: Sequence[int], width: int) -> None:
    """Narrow names until the columns fit, the widest first."""
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - width
    while excess > 0 and (longer := [n for n in names if widths[n] > _SHORTEST_CUT]):
        widths[max(longer, key=widths.__getitem__)] -= 1
        excess -= 1
