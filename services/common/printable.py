"""Show text from outside on a terminal: what a terminal would obey is written as an escape."""

import json


def printable(text: str) -> str:
    """Write each character that is not printable as an escape of Python: `\\x1b`, `\\u202e`.

    These are control characters with line ends and tabs, marks that change the direction of text,
    invisible characters, and spaces other than the usual one.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escape(each) for each in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def json_line(value: object) -> str:
    """Return JSON on one line, in printable ASCII; values of other types become text."""
    # json.dumps escapes all but ASCII, and of ASCII the control characters before the space.
    return json.dumps(value, default=str).replace("\x7f", r"\u007f")
