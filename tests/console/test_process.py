"""Test the console as processes: `sediment console`, and `python -m services.console` with TLS."""

import re
import signal
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from services.api.roles import Role
from services.local.postgres import EmbeddedPostgres
from services.local.stack import own_environment
from tests.console.history import Shown
from tests.harness.rlmm_process import serving_rlmm
from tests.harness.secured_server import Deployment, spiffe

_URL = re.compile(r"https?://127\.0\.0\.1:\d+/")


@contextmanager
def running(command: list[str], environment: Mapping[str, str]) -> Iterator[str]:
    """Run a console until the block ends; yield its URL. It must end well on SIGTERM."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        env=own_environment(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        found = next(filter(None, map(_URL.search, process.stdout)))
        yield found.group()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, process.stdout.read()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_the_command_serves_this_machine_and_ends_when_told(
    postgres: EmbeddedPostgres, migrated_database: str
) -> None:
    database_url = postgres.create_database("console-command", template=migrated_database)
    with (
        serving_rlmm(database_url) as rlmm,
        running(["services.cli", "console", "--rlmm", rlmm.address], {}) as url,
        urllib.request.urlopen(f"{url}api/topics") as answer,
    ):
        assert (answer.status, b'"total":0' in answer.read()) == (200, True)


def test_the_service_serves_tls_by_its_settings(shown: Shown, tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    deployment.grant(spiffe("oncall"), Role.AUDITOR)
    files = {
        name: value
        for name, value in deployment.environment("CONSOLE").items()
        if "_TLS_" in name or "POLICY" in name
    }
    address = next(a for service, a, _ in shown.console.tier.channels if service == "rlmm")
    settings = {**files, "CONSOLE_RLMM_ADDRESS": address, "SEDIMENT_PLAINTEXT": "true"}
    oncall = deployment.client("oncall")

    def asked(url: str) -> bytes:
        context = ssl.create_default_context(cafile=oncall.ca)
        assert oncall.certificate is not None
        context.load_cert_chain(oncall.certificate, oncall.key)
        with urllib.request.urlopen(f"{url}api/about", context=context) as answer:
            return bytes(answer.read())

    with running(["services.console"], settings) as url:
        assert spiffe("oncall").encode() in asked(url)
