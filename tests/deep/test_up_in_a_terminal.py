"""Test what `up` prints in a terminal of 80 columns and in a pipe, under LC_ALL=C."""

from pathlib import Path

import pytest

from tests.harness.terminals import assert_few_and_short, lines_until, running_until_ctrl_c


@pytest.mark.parametrize("is_terminal", [True, False], ids=["terminal", "pipe"])
def test_up_prints_few_short_lines(server_directory: Path, *, is_terminal: bool) -> None:
    directory = server_directory / f"lines-{is_terminal}"
    command = ("up", "--data-dir", directory)
    with running_until_ctrl_c(*command, is_terminal=is_terminal) as lines:
        printed = lines_until("in a browser: `sediment console", lines)
    assert_few_and_short(printed, DIRECTORY=directory)
