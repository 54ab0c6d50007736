"""Run the commands of the page of the first production day, in their order, as they are written."""

import shlex
from pathlib import Path

import pytest

from demos.stage import link_log_dir
from hatch_build import ROOT
from tests.harness.pages import shown_commands
from tests.harness.running_up import running_up
from tests.harness.sediment_command import sediment
from tests.harness.world import BUNDLED_LOG

PAGE = ROOT / "docs" / "start" / "production.md"
POLICY = """
[[grant]]
identities = ["spiffe://example.com/oncall"]
roles = ["auditor", "admin"]
topics = ["*"]
"""


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_every_command_of_the_first_day_succeeds(server_directory: Path, tmp_path: Path) -> None:
    log_dir = tmp_path / "log"
    link_log_dir(BUNDLED_LOG, log_dir)
    (tmp_path / "policy.toml").write_text(POLICY)
    with running_up(server_directory / "production", "--log-dir", log_dir) as up:
        up.wait_until_shipped()
        environment = up.environment(tmp_path)
        given = {"policy.toml": str(tmp_path / "policy.toml"), "$SEDIMENT_RSM": up.endpoints.rsm}
        given |= {"clicks": "payments", "clicks-0": "payments-0"}
        for words in map(shlex.split, shown_commands(PAGE)):
            done = sediment(*(given.get(word, word) for word in words), environment=environment)
            assert done.returncode == 0, (words, done.stdout, done.stderr)
