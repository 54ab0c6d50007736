"""Check that the commands in the documentation exist, with their options."""

import re
import shlex

import pytest
from typer.core import TyperArgument, TyperOption
from typer.testing import CliRunner

from hatch_build import ROOT
from services.cli.command import Command, Group
from services.cli.examples import EXAMPLES, examples_of
from services.cli.main import app
from tests.harness.pages import shown_commands
from tools.commands_page import commands, commands_markdown

PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
WIDE = {"COLUMNS": "400", "TERM": "dumb", "NO_COLOR": "1"}


LINES = sorted({line for page in PAGES for line in shown_commands(page)})


def test_the_documentation_shows_commands() -> None:
    assert len(LINES) > 100


@pytest.mark.parametrize("line", LINES)
def test_a_documented_command_exists(line: str) -> None:
    words = shlex.split(line)
    named = dict(commands())
    command = words[: 2 if " ".join(words[:2]) in named else 1]
    if " ".join(command) not in named:
        command.append("list")  # runs if no command of the group is named
    options = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}

    shown = CliRunner().invoke(app, [*command, "--help"], env=WIDE)

    assert shown.exit_code == 0, shown.output
    listed = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", shown.output))
    assert options <= listed


def test_the_page_of_commands_is_up_to_date() -> None:
    page = ROOT / "docs" / "reference" / "commands.md"
    assert page.read_text().strip() == commands_markdown().strip(), "run `make docs`"


@pytest.mark.parametrize(("name", "command"), [*commands()], ids=[name for name, _ in commands()])
def test_each_command_has_examples_and_a_help_of_80_columns(
    name: str, command: Command | Group
) -> None:
    assert EXAMPLES[name]
    shown = CliRunner().invoke(app, [*name.split(), "--help"], prog_name="sediment")
    assert examples_of(name)[0] in shown.output
    assert max(map(len, shown.output.splitlines())) <= 80
    for each in command.params:
        assert isinstance(each, TyperArgument | TyperOption)
        assert each.help, each.name


def test_examples_are_of_commands_that_there_are() -> None:
    assert EXAMPLES.keys() == dict(commands()).keys()
