"""Test services as processes, with a stand-in that announces the values it gets."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.local.process import ProcessDiedError, ProcessError
from services.local.stack import (
    ServiceProcess,
    own_environment,
    rlm_settings,
    run_to_end,
    settings_of,
)
from tests.harness.processes import start_with_failpoint, wait_until_dead

ANNOUNCES = """
import json, os, signal
from pathlib import Path
told = {name: value for name, value in os.environ.items() if name[:4] in ("RSM_", "SEDI")}
Path("told.json").write_text(json.dumps(told))
parts = {"address": "LISTEN", "health": "HEALTH", "metrics": "METRICS"}
addresses = {part: os.environ[f"RSM_{name}_ADDRESS"] for part, name in parts.items()}
print(json.dumps({"service": "rsm", **addresses}), flush=True)
signal.pause()
"""
DIES_AT_A_FAILPOINT = ANNOUNCES.replace("signal.pause()", "os.kill(os.getpid(), signal.SIGKILL)")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    command = [sys.executable, "-c", ANNOUNCES]
    service = ServiceProcess("rsm", {"RSM_BUCKET": "orders"}, tmp_path, command)
    service.start()
    yield service
    service.kill()


def told(directory: Path) -> dict[str, str]:
    read: dict[str, str] = json.loads((directory / "told.json").read_text())
    return read


def test_service_address_is_the_announced_one(service: ServiceProcess, tmp_path: Path) -> None:
    assert service.address == told(tmp_path)["RSM_LISTEN_ADDRESS"]


def test_a_service_keeps_its_addresses_over_a_restart(service: ServiceProcess) -> None:
    before = service.announcement
    service.kill()
    service.start()
    assert service.announcement == before


def test_a_failpoint_holds_for_one_start(service: ServiceProcess, tmp_path: Path) -> None:
    service.stop()
    start_with_failpoint(service, "rsm.log_written", nth=3)
    armed = told(tmp_path)
    service.stop()
    service.start()
    assert armed["SEDIMENT_FAILPOINT"] == "rsm.log_written:3:KILL"
    assert "SEDIMENT_FAILPOINT" not in told(tmp_path)


def test_a_service_that_kills_itself_is_noticed(tmp_path: Path) -> None:
    service = ServiceProcess("rsm", {}, tmp_path, [sys.executable, "-c", DIES_AT_A_FAILPOINT])
    service.start()
    wait_until_dead(service)


def test_a_service_that_ends_at_start_shows_why(tmp_path: Path) -> None:
    refuses = "import sys; sys.exit('unknown setting: RSM_BUKCET')"
    service = ServiceProcess("rsm", {}, tmp_path, [sys.executable, "-c", refuses])
    with pytest.raises(ProcessDiedError, match="unknown setting: RSM_BUKCET"):
        service.start()


def test_a_command_that_fails_shows_why(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no such database')"]
    with pytest.raises(ProcessError, match="no such database"):
        run_to_end(command, {})


def test_a_setting_reaches_only_the_service_of_its_prefix() -> None:
    settings = {"RLM_COPY_LEASE_MS": "4096", "RLMM_DATABASE_POOL_SIZE": "4"}
    assert settings_of("rlm", settings) == {"RLM_COPY_LEASE_MS": "4096"}
    assert settings_of("rlmm", settings) == {"RLMM_DATABASE_POOL_SIZE": "4"}


@pytest.mark.deep
def test_services_inherit_the_environment_but_no_settings_and_no_secrets(tmp_path: Path) -> None:
    show = "from services.local.stack import own_environment\nprint(sorted(own_environment({})))"
    secrets = {"AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t", "PGPASSWORD": "p"}
    environment = own_environment({"RSM_BUCKET": "of another RSM", "KEPT": "1", **secrets})
    done = subprocess.run(
        [sys.executable, "-c", show], env=environment, capture_output=True, text=True, check=True
    )
    assert "'KEPT'" in done.stdout
    for name in ("RSM_BUCKET", *secrets):
        assert name not in done.stdout


def test_log_directories_are_given_as_absolute_paths() -> None:
    settings = rlm_settings("rsm:1", "rlmm:2", [Path("data"), Path("/logs")], None)
    assert settings["RLM_LOG_DIRS"] == f"{Path.cwd()}/data,/logs"
