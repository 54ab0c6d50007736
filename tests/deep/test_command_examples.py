"""Run the first example of each command beside a real `sediment up`, as its help shows it."""

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from demos.stage import link_log_dir
from services.cli.examples import EXAMPLES, examples_of
from tests.harness.running_up import Up, running_up
from tests.harness.sediment_command import sediment
from tests.harness.world import BUNDLED_LOG
from tests.unit.cli.test_metadata_print import SNAPSHOTS, snapshot_file
from tools.commands_page import commands

POLICY = (
    '[[grant]]\nidentities = ["spiffe://example/broker-1"]\nroles = ["shipper"]\ntopics = ["*"]\n'
)
SETTINGS = "RSM_BACKEND=filesystem\nRSM_DIRECTORY=/var/lib/tier\nRSM_PLAINTEXT=true\n"
PROBLEMS_ARE_NAMED = {"status", "doctor", "ship", "topics delete-records"}
"""They may find that the bundled log has blocked segments, and no broker."""
LAST = ("topics delete-records", "partitions reset-epoch", "topics delete")
"""After these nothing more is copied, and records or the topic are gone."""
OF = dict(commands())
ELSEWHERE = ("up", "console", "keys rewrap", "metadata import", "metadata export")
"""That of `up` runs beside them all; that of the console, which needs more, in tests/console; what
needs a ring of keys in tests/behaviour/test_cli_keys.py, and a broker in tests/kafka.
"""
COMMANDS = [*(name for name in EXAMPLES if name not in (*ELSEWHERE, *LAST)), *LAST]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Provide what stands in the place of the examples' files."""
    directory = tmp_path_factory.mktemp("examples")
    link_log_dir(BUNDLED_LOG, directory / "log")
    (directory / "policy.toml").write_text(POLICY)
    (directory / "rsm.env").write_text(SETTINGS)
    snapshot_file(directory, SNAPSHOTS)
    (directory / "new").mkdir()
    shutil.copy(BUNDLED_LOG / "meta.properties", directory / "new")
    names = ("policy.toml", "rsm.env", "remote_log_snapshot")
    stand_in = {name: str(directory / name) for name in names}
    log_dirs = {"/var/lib/kafka/data": "log", "/var/lib/kafka/new": "new"}
    return {name: str(directory / of) for name, of in log_dirs.items()} | stand_in


def typed(command: str, files: dict[str, str]) -> list[str]:
    """Return the words behind `sediment` of a command's first example."""
    _, *words = shlex.split(examples_of(command)[0])
    return [files.get(word, word) for word in words]


@pytest.fixture(scope="module")
def up(server_directory: Path, files: dict[str, str]) -> Iterator[Up]:
    _, *options = typed("up", files)
    with running_up(server_directory / "up-of-examples", *options) as made:
        made.wait_until_shipped()
        yield made


@pytest.mark.parametrize("command", COMMANDS)
def test_the_first_example_runs(up: Up, files: dict[str, str], command: str) -> None:
    has_directory = any("--data-dir" in each.opts for each in OF[command].params)
    place = ("--data-dir", up.data_dir) if has_directory else ()
    done = sediment(*typed(command, files), *place)
    expected = {0, 1} if command in PROBLEMS_ARE_NAMED else {0}
    assert done.returncode in expected, done.stderr
    assert "Traceback" not in done.stderr
