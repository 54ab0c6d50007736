"""Run the commands of README's section "Use it", in their order, as they are written."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from demos.stage import link_log_dir
from tests.harness.running_up import Up, running_up
from tests.harness.world import BUNDLED_LOG

README = Path(__file__).parents[2] / "README.md"
LOG_DIR = "tests/data/kafka-log"
COMMAND = "sediment "
ON_PATH = "export PATH="
WITHOUT_END = ("up", "console")


def commands() -> list[list[str]]:
    """Return the words behind `sediment` of each line in the section's blocks."""
    text = README.read_text().partition("## Use it\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    first, *lines = [line for block in blocks for line in block.splitlines()]
    assert first.startswith(ON_PATH)
    lines = [line for line in lines if not line.startswith("#")]
    assert all(line.startswith(COMMAND) for line in lines)
    made = [shlex.split(line.removeprefix(COMMAND), comments=True) for line in lines]
    assert {words[0] for words in made} > {*WITHOUT_END, "status", "fetch", "sweep"}
    return [words for words in made if words[0] not in WITHOUT_END]


@pytest.fixture
def up(server_directory: Path, tmp_path: Path) -> Iterator[Up]:
    log_dir = tmp_path / "log"
    link_log_dir(BUNDLED_LOG, log_dir)
    with running_up(server_directory / "readme", "--log-dir", log_dir) as made:
        made.wait_until_shipped()
        yield made


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_every_command_does_what_it_says(up: Up, tmp_path: Path) -> None:
    printed = {}
    for words in commands():
        given = [str(tmp_path / "log") if word == LOG_DIR else word for word in words]
        done = up.run(*given)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        printed[" ".join(words)] = done.stdout + done.stderr
    fetched = printed["fetch payments-0 --offset 100"].splitlines()
    assert fetched[0].startswith("100\t")
    assert "CRITICAL" not in printed["status"]
    assert "WARNING" not in printed["status"]
    assert "0 segments" not in printed["sweep retention"]
    left = {d["topic"] for d in up.lines("partitions") if d["lag_segments"]}
    assert left == {"payments"}  # as the page says
