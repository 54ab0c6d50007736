"""Test the scripts of `sediment completion`, and what the command suggests for a mistyped name."""

import os
import subprocess
import sysconfig

import pytest

from services.cli.main import COMMANDS
from tests.harness.sediment_command import sediment


def completed(*typed: str) -> list[str]:
    """Return what bash offers for the last of the typed words."""
    script = f"""{sediment("completion", "bash").stdout}
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _sediment_completion sediment
printf '%s\\n' "${{COMPREPLY[@]}}\""""
    path = f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", "sediment", *typed],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PATH": path},
    )
    return done.stdout.split()


@pytest.mark.deep
def test_bash_completes_commands_options_and_their_values() -> None:
    assert completed("sta") == ["status"]
    assert {*COMMANDS} <= {*completed("")}
    assert completed("db", "upg") == ["upgrade"]
    assert completed("--tls-ca", "ca.pem", "db", "maintain", "--ev") == ["--events-retention"]
    assert "--rlmm" in completed("status", "--")
    assert completed("usage", "--by", "ow") == ["owner"]


@pytest.mark.parametrize(("shell", "first"), [("zsh", "#compdef"), ("fish", "complete")])
def test_other_shells_have_scripts(shell: str, first: str) -> None:
    assert sediment("completion", shell).stdout.startswith(f"{first} ")
