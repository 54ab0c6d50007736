"""Run a command in a terminal of 80 columns or in a pipe, and read what it prints."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from services.local.stack import own_environment

COLUMNS, LINES = 80, 24
FRAMES = "│┃─━\x1b"


@contextmanager
def running_until_ctrl_c(*words: object, is_terminal: bool) -> Iterator[Iterator[str]]:
    """Run a command under LC_ALL=C; yield its lines of both outputs. Ctrl-C must end it well."""
    ours, theirs = pty.openpty() if is_terminal else os.pipe()
    size = {"COLUMNS": str(COLUMNS), "LINES": str(LINES), "TERM": "xterm", "LC_ALL": "C"}
    with subprocess.Popen(
        [sys.executable, "-m", "services.cli", *map(str, words)],
        env=own_environment(size),
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        try:
            yield _lines(ours)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()
            os.close(ours)


def _lines(descriptor: int) -> Iterator[str]:
    with open(descriptor, "rb", buffering=0, closefd=False) as read:
        while line := read.readline():
            yield line.decode("ascii").rstrip("\r\n")


def lines_until(beginning: str, lines: Iterator[str]) -> list[str]:
    """Return the lines up to the one that begins so."""
    read = []
    for line in lines:
        read.append(line)
        if line.startswith(beginning):
            return read
    raise AssertionError(f"no line begins with {beginning!r}: {read}")


def assert_few_and_short(lines: list[str], **names: object) -> None:
    """Assert that a screen has the lines, without frames and colours.

    Args:
        names: what may be of any length, as a directory of the test's.
    """
    for short, name in names.items():
        lines = [line.replace(str(name), short) for line in lines]
    assert len(lines) < LINES
    assert [line for line in lines if len(line) > COLUMNS] == []
    assert not any(each in line for line in lines for each in FRAMES)
