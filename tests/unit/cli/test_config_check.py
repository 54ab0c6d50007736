"""Test `sediment config check`: what it names in a file of settings, and its exit codes."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.harness.sediment_command import sediment

GOOD = """\
# of RSM
RSM_BACKEND=filesystem
export RSM_DIRECTORY="/srv/tier"
RSM_PLAINTEXT=true

RLMM_DATABASE_URL='postgresql://rlmm@db/sediment'
RLMM_PLAINTEXT=true
OTHER=1
"""


def check(
    tmp_path: Path, text: str, environment: Mapping[str, str] | None = None
) -> tuple[int, list[tuple[str, str]]]:
    file = tmp_path / "settings.env"
    file.write_text(text)
    done = sediment("config", "check", str(file), "-o", "json", environment=environment)
    found = json.loads(done.stdout)["problems"]
    return done.returncode, [(each["service"], each["problem"]) for each in found]


def test_a_file_of_valid_settings_is_valid_and_changes_nothing(tmp_path: Path) -> None:
    before = dict(os.environ)
    assert check(tmp_path, GOOD) == (0, [])
    assert dict(os.environ) == before
    shown = sediment("config", "check", str(tmp_path / "settings.env"))
    assert "RSM, RLMM" in shown.stderr


def test_the_environment_is_no_part_of_the_file(tmp_path: Path) -> None:
    shell = {"RSM_COPY_THREADS": "0", "RSM_BUKET": "x", "RLMM_DATABASE_URL": "postgresql://db/x"}
    assert check(tmp_path, GOOD, shell) == (0, [])
    code, [(service, problem)] = check(tmp_path, "RLMM_PLAINTEXT=true", shell)
    assert (code, service, problem[:19]) == (1, "RLMM", "RLMM_DATABASE_URL: ")


@pytest.mark.parametrize(
    ("line", "service", "words"),
    [
        ("RSM_BUKET=x", "RSM", "RSM_BUKET (did you mean RSM_BUCKET?)"),
        ("RSN_BUCKET=x", "", "did you mean RSM_BUCKET?"),
        ("RSM_COPY_THREADS=0", "RSM", "RSM_COPY_THREADS: "),
        ("RSM_DIRECT_READS=true", "RSM", "RSM_DIRECT_READS=true needs RSM_BACKEND=s3"),
        ("RLMM_PLAINTEXT=false", "RLMM", "no TLS: set RLMM_TLS_CERTIFICATE_FILE"),
        ("RLM_RSM_ADDRESS=rsm:1", "RLM", "RLM_RLMM_ADDRESS: "),
        ("CONSOLE_RSM_ADDRESS=rsm:1", "CONSOLE", "CONSOLE_RLMM_ADDRESS: "),
        ("CONSOLE_RLM_ADRESSES=rlm:1", "CONSOLE", "(did you mean CONSOLE_RLM_ADDRESSES?)"),
        ("CONSOL_RSM_ADDRESS=rsm:1", "", "did you mean CONSOLE_RSM_ADDRESS?"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, line: str, service: str, words: str) -> None:
    code, problems = check(tmp_path, f"{GOOD}{line}\n")
    assert code == 1
    assert [who for who, text in problems if words in text] == [service], problems


@pytest.mark.parametrize("text", ["RSM_BACKEND", "a secret = 1", "=1"])
def test_a_line_that_is_no_assignment_is_refused_without_its_text(
    tmp_path: Path, text: str
) -> None:
    file = tmp_path / "settings.env"
    file.write_text(f"{GOOD}{text}\n")
    done = sediment("config", "check", str(file))
    assert done.returncode == 2
    assert done.stderr == f"sediment: {file}, line 9: is not NAME=VALUE\n"
