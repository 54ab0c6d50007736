"""Test what is shown while a command runs."""

import os
import pty
import sys
from select import select
from uuid import uuid4

import pytest

from services.api.ids import TopicIdPartition
from services.cli.output import progress
from services.cli.reconcile import scrub_progress
from services.cli.ship import ShipProgress
from services.workflows.scrub import Scrubbed

MIB = 1024 * 1024


def seen_in(terminal: int, last: bytes) -> bytes:
    """Read what a terminal shows until `last` is there: each write may come by itself."""
    seen = b""
    while last not in seen and select([terminal], [], [], 10)[0]:
        seen += os.read(terminal, 4_096)
    os.close(terminal)
    return seen


def test_the_size_found_so_far_is_not_shown_as_the_total() -> None:
    topic_id, texts = uuid4(), list[str]()
    first, second = (TopicIdPartition(topic_id, "orders", number) for number in range(2))
    shown = ShipProgress(texts.append)
    shown.planned(first, 2, 2 * MIB)
    shown.sent(first, MIB)
    shown.copied(first, 0, MIB)
    assert texts[-1] == "shipped 1 segment (1.0 MiB), 1.0 MiB/s; 2.0 MiB found to ship so far"
    shown.planned(second, 3, 3 * MIB)
    assert texts[-1].endswith("; 5.0 MiB found to ship so far")


def test_a_terminal_sees_the_text_in_place_and_nothing_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = pty.openpty()
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("TERM", "xterm")
    with open(theirs, "w", encoding="ascii") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with progress() as show:
            show(f"{'orders' * 5}\n\x1b[2J")
            show("too early after the first")
        seen = seen_in(ours, b"\x1b[J")
    assert seen == b"ordersor...rsorders\r\n\\x1b[2J\x1b[1F\x1b[J"


def test_a_pipe_gets_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(is_first_printed=True) as show:
        show("1 segment")
        show("2 segments")
    assert capsys.readouterr() == ("", "1 segment\n")


def test_a_scrub_shows_how_much_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with open(theirs, "w", encoding="ascii") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with scrub_progress(2_290) as show:
            show(Scrubbed(segments=34, read_bytes=2 * MIB))
        figures = b"34 of about 2,290 segments (2.0 MiB)"
        assert figures in seen_in(ours, figures)
