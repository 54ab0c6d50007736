"""Run `sediment up` as a process, as an operator does."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.api.remote_log_manager import PartitionDescription, RemoteLogManager, all_descriptions
from services.common.client_security import PLAINTEXT
from services.local.data_directory import StackEndpoints, read_credentials, write_secret
from services.local.stack import own_environment
from services.rpc.client.channel import open_channel
from services.rpc.client.log import RemoteLogManagerClient
from tests.harness.eventually import eventually
from tests.harness.sediment_command import sediment

SEGMENTS = 72
"""Those of the bundled log."""


@dataclass
class Up:
    """A running `sediment up`, on a directory of its own."""

    process: "subprocess.Popen[str]"
    endpoints: StackEndpoints
    data_dir: Path

    def run(self, *arguments: object) -> "subprocess.CompletedProcess[str]":
        return sediment(*arguments, "--data-dir", self.data_dir)

    def lines(self, *arguments: object) -> list[dict[str, Any]]:
        """What a command that must succeed prints with -o json."""
        done = self.run(*arguments, "-o", "json")
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def environment(self, directory: Path) -> dict[str, str]:
        """Return the variables of a person who has no other way to this deployment.

        Args:
            directory: for the file with the database's password.
        """
        at, secrets = self.endpoints, read_credentials(self.endpoints)
        password = write_secret(directory / "password", secrets.database_password)
        return {
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

    @contextmanager
    def rlm(self) -> Iterator[RemoteLogManager]:
        with open_channel(self.endpoints.rlm, PLAINTEXT) as channel:
            yield RemoteLogManagerClient(channel, self.endpoints.rlm)

    def wait_until_shipped(self) -> list[PartitionDescription]:
        def shipped() -> list[PartitionDescription]:
            with self.rlm() as rlm:
                found = list(all_descriptions(rlm))
            return found if sum(d.remote_segments for d in found) >= SEGMENTS else []

        return eventually(shipped, deadline_ms=200_000)


@contextmanager
def running_up(
    data_dir: Path, *options: object, environment: Mapping[str, str] | None = None
) -> Iterator[Up]:
    """Runs until the test ends it, or else is killed."""
    command = [sys.executable, "-m", "services.cli", "up", "--data-dir", data_dir, "-o", "json"]
    with subprocess.Popen(
        [*map(str, command), *map(str, options)],
        env=own_environment(environment or {}),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        try:
            assert line, f"`sediment up` ended: {process.stderr.read()}"
            yield Up(process, StackEndpoints(**json.loads(line)), data_dir)
        finally:
            process.kill()
