"""Test that text from outside cannot steer a terminal or forge a line."""

import json
import logging

import pytest

from services.common.log import JsonFormatter
from services.common.printable import json_line, printable

CLEAR_SCREEN = "\x1b[2J"
BIDI = [chr(code) for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F)]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("orders-0 at 12:00, Ünïcödé 東京", "orders-0 at 12:00, Ünïcödé 東京"),
        (CLEAR_SCREEN, r"\x1b[2J"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x9b31m", r"\x9b31m"),
        ("\x7f\x00", r"\x7f\x00"),
        ("\u2028", r"\u2028"),
        ("\ud800", r"\ud800"),
    ],
)
def test_text_is_shown_without_terminal_control_characters(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_no_control_character_and_no_change_of_direction_is_shown_as_it_is() -> None:
    odd = [*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), *BIDI]
    assert not set(printable("".join(odd))) & set(odd)
    assert not set(json_line("".join(odd))) & set(odd)
    assert json.loads(json_line("".join(odd))) == "".join(odd)


def test_a_logged_value_cannot_forge_a_line() -> None:
    forged = '\n{"level": "INFO", "message": "all is well"}\r\x1b[2J\u202e'
    record = logging.makeLogRecord(
        {"msg": "topic %s", "args": (forged,), "levelname": "INFO", "topic": forged}
    )
    line = JsonFormatter().format(record)
    assert line.isprintable()
    assert json.loads(line)["message"] == f"topic {forged}"
