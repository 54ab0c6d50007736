"""Test the console as processes: `sediment console`, and `python -m services.console` with TLS."""

import re
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path

import pytest

from services.api.roles import Role
from services.local.stack import own_environment
from tests.console.history import Shown
from tests.harness.local_servers import DatabaseServer
from tests.harness.processes import RlmmProcess, serving_rlmm
from tests.harness.secured import Deployment, spiffe
from tests.harness.small_limits import no_further_threads
from tests.harness.terminals import assert_few_and_short, lines_until, running_until_ctrl_c

_URL = re.compile(r"https?://127\.0\.0\.1:\d+/")


@contextmanager
def started(
    command: list[str], environment: Mapping[str, str]
) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Run a console until the block ends; yield the process and its URL."""
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
        yield process, found.group()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextmanager
def running(command: list[str], environment: Mapping[str, str]) -> Iterator[str]:
    """Run a console until the block ends; yield its URL. It must end well on SIGTERM."""
    with started(command, environment) as (process, url):
        yield url
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        assert process.wait(60) == 0, process.stdout.read()


@pytest.fixture(scope="module")
def rlmm(postgres: DatabaseServer, migrated_database: str) -> Iterator[RlmmProcess]:
    database_url = postgres.create_database("console-command", template=migrated_database)
    with serving_rlmm(database_url) as made:
        yield made


def test_the_command_serves_this_machine_and_ends_when_told(rlmm: RlmmProcess) -> None:
    with (
        running(["services.cli", "console", "--rlmm", rlmm.address], {}) as url,
        urllib.request.urlopen(f"{url}api/topics") as answer,
    ):
        assert (answer.status, b'"total":0' in answer.read()) == (200, True)


@pytest.mark.parametrize("is_terminal", [True, False], ids=["terminal", "pipe"])
def test_the_command_prints_few_short_lines(rlmm: RlmmProcess, *, is_terminal: bool) -> None:
    command = ("console", "--rlmm", rlmm.address)
    with running_until_ctrl_c(*command, is_terminal=is_terminal) as lines:
        printed = lines_until("http://127.0.0.1:", lines)
    assert_few_and_short(printed)


def test_the_service_serves_tls_by_its_settings(shown: Shown, tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    deployment.grant(spiffe("oncall"), Role.AUDITOR)
    files = {
        name: value
        for name, value in deployment.environment("CONSOLE").items()
        if "_TLS_" in name or "POLICY" in name
    }
    address = next(a for service, a, _ in shown.console.tier.clients.channels if service == "rlmm")
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


NO_THREAD = "can't start new thread"


@pytest.fixture
def plain(shown: Shown) -> dict[str, str]:
    addresses = {service: address for service, address, _ in shown.console.tier.clients.channels}
    return {
        "CONSOLE_RLMM_ADDRESS": addresses["rlmm"],
        "SEDIMENT_PLAINTEXT": "true",
    }


def code_of(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as e:
        return e.code


def test_a_console_that_may_start_no_thread_for_a_while_answers_later(
    plain: dict[str, str],
) -> None:
    with started(["services.console"], plain) as (process, url):
        with no_further_threads(process.pid):
            assert code_of(f"{url}api/topics") == 500
        assert code_of(f"{url}api/topics") == 200
        process.kill()
        assert NO_THREAD in process.communicate()[0]


def test_a_console_whose_connections_are_lost_ends(plain: dict[str, str]) -> None:
    """gRPC counts on a thread that it could not start; later streams would wait for ever."""
    with started(["services.console"], plain) as (process, url):
        # The thread that serves this one serves the next one too.
        assert code_of(f"{url}api/topics") == 200
        with no_further_threads(process.pid):
            with pytest.raises((OSError, HTTPException)):
                code_of(f"{url}api/health")
            assert process.wait(60) == 1
        assert NO_THREAD in process.communicate()[0]
    with started(["services.console"], plain) as (_, url):
        assert code_of(f"{url}api/health") == 200
