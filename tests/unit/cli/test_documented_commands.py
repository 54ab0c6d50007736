"""Check that the commands in the documentation exist, with their options."""

import re
import shlex

import pytest
from typer.testing import CliRunner

from hatch_build import ROOT
from services.cli.main import app

PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)
WIDE = {"COLUMNS": "400", "TERM": "dumb", "NO_COLOR": "1"}
GROUPS = ("db", "policy", "store", "sweep", "topics")


def _shown() -> list[str]:
    """Return the lines of shell blocks that run `sediment`."""
    lines = set()
    for page in PAGES:
        for block in BLOCK.findall(page.read_text()):
            for line in block.replace("\\\n", " ").splitlines():
                shown = re.search(r"(?:^|\$\()(?:\.venv/bin/)?sediment ((?:\$\(.*\)|[^#)])*)", line)
                if shown:
                    lines.add(shown[1].replace('"', "'").strip())
    return sorted(lines)


def test_the_documentation_shows_commands() -> None:
    assert len(_shown()) > 40


@pytest.mark.parametrize("line", _shown())
def test_a_documented_command_exists(line: str) -> None:
    words = shlex.split(line)
    is_nested = words[0] in GROUPS or words[:2] in (
        ["partitions", "undelete"],
        ["partitions", "reset-epoch"],
        ["partitions", "release-export"],
    )
    command = words[: 2 if is_nested else 1]
    options = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}

    shown = CliRunner().invoke(app, [*command, "--help"], env=WIDE)

    assert shown.exit_code == 0, shown.output
    listed = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", shown.output))
    assert options <= listed
