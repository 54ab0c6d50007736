"""Test the scripts of `sediment completion`, and what the command suggests for a mistyped name."""

import subprocess

import pytest

from services.cli.completion import Words, all_words, bash_script, fish_script, zsh_script
from services.cli.main import COMMANDS
from tests.harness.sediment_command import sediment


@pytest.fixture(scope="module")
def words() -> Words:
    return all_words()


def completed(words: Words, *typed: str) -> list[str]:
    """Return what bash offers for the last of the typed words."""
    script = f"""{bash_script(words)}
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _sediment; printf '%s\\n' "${{COMPREPLY[@]}}\""""
    done = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", "sediment", *typed],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_bash_completes_commands_and_options(words: Words) -> None:
    assert completed(words, "sta") == ["status"]
    assert {*COMMANDS} <= {*completed(words, "")}
    assert completed(words, "db", "upg") == ["upgrade"]
    assert completed(words, "--tls-ca", "ca.pem", "db", "maintain", "--ev") == ["--events-days"]
    assert "--rlmm" in completed(words, "status", "--")


def test_the_scripts_of_the_other_shells_have_the_same_words(words: Words) -> None:
    assert zsh_script(words).startswith("#compdef sediment\n")
    assert bash_script(words) in zsh_script(words)
    lines = fish_script(words).splitlines()
    assert "complete -c sediment -n '__fish_seen_subcommand_from status' -l rlmm" in lines
    assert len(lines) == sum(map(len, words.values()))


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["statsu"], "'status'"),
        (["db", "upgrad"], "'upgrade'"),
        (["status", "--rlm-m", "x"], "--rlmm"),
    ],
)
def test_a_mistyped_name_is_answered_with_the_one_that_was_meant(
    arguments: list[str], meant: str
) -> None:
    done = sediment(*arguments)
    assert done.returncode == 2
    assert meant in done.stderr
