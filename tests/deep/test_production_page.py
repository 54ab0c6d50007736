"""Run the commands of the page of the first production day, in their order, as they are written."""

import re
import shlex
from pathlib import Path

import pytest

from demos.stage import link_log_dir
from hatch_build import ROOT
from services.local.data_directory import read_credentials, write_secret
from tests.deep.test_cli_up import running_up
from tests.harness.sediment_command import sediment
from tests.harness.world import BUNDLED_LOG

PAGE = ROOT / "docs" / "start" / "production.md"
POLICY = """
[[grant]]
identities = ["spiffe://example.com/oncall"]
roles = ["auditor", "admin"]
topics = ["*"]
"""


def commands() -> list[list[str]]:
    blocks = re.findall(r"(?ms)^ *```sh\n(.*?)^ *```", PAGE.read_text())
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    assert {line.split()[0] for line in lines} == {"export", "sediment"}
    return [shlex.split(each, comments=True)[1:] for each in lines if each.startswith("sediment")]


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_every_command_of_the_first_day_succeeds(server_directory: Path, tmp_path: Path) -> None:
    log_dir = tmp_path / "log"
    link_log_dir(BUNDLED_LOG, log_dir)
    (tmp_path / "policy.toml").write_text(POLICY)
    with running_up(server_directory / "production", "--log-dir", log_dir) as up:
        up.wait_until_shipped()
        at, secrets = up.endpoints, read_credentials(up.endpoints)
        password = write_secret(tmp_path / "password", secrets.database_password)
        environment = {
            "RLMM_DATABASE_URL": at.database_url,
            "RLMM_DATABASE_PASSWORD_FILE": str(password),
            "RSM_BACKEND": "s3",
            "RSM_ENDPOINT": at.s3_endpoint.removeprefix("http://"),
            "RSM_REGION": at.s3_region,
            "RSM_BUCKET": at.s3_bucket,
            "RSM_PREFIX": at.s3_prefix,
            "RSM_DEPLOYMENT_ID": at.deployment_id,
            "RSM_SECURE": "false",
            "RSM_ACCESS_KEY": secrets.s3_access_key,
            "RSM_SECRET_KEY": secrets.s3_secret_key,
            "SEDIMENT_RSM": at.rsm,
            "SEDIMENT_RLMM": at.rlmm,
            "SEDIMENT_RLM": at.rlm,
        }
        given = {"policy.toml": str(tmp_path / "policy.toml"), "$SEDIMENT_RSM": at.rsm}
        given |= {"clicks": "payments", "clicks-0": "payments-0"}
        for words in commands():
            done = sediment(*(given.get(word, word) for word in words), environment=environment)
            assert done.returncode == 0, (words, done.stdout, done.stderr)
