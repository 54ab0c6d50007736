"""Test the command `sediment` without any service: its start, its help, the schema's revision."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_group
from typer.testing import CliRunner

from services.cli.connections import command_group, with_services
from services.cli.main import COMMANDS, OPTIONS_OF_COMMANDS, app, load
from services.local.stack import own_environment
from services.rlmm.database.schema_revision import known_revision
from tests.harness.sediment_command import sediment, sediment_process

# What a command needs it imports itself: help is for people who wait for it.
HELP_AND_WHAT_IT_IMPORTED = """
import sys
from services.cli.main import app
app(["--help"], standalone_mode=False)
print(sorted({name.partition(".")[0] for name in sys.modules} & {
    "alembic", "google", "grpc", "kafka", "minio", "psycopg", "pydantic", "rich", "sqlalchemy"
}))
print(sorted(name for name in sys.modules if name.startswith("services.")))
"""


def run(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *command],
        env=own_environment({}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_help_imports_no_library_and_no_service() -> None:
    *shown, libraries, ours = run("-c", HELP_AND_WHAT_IT_IMPORTED).stdout.splitlines()
    assert "  partitions  " in "\n".join(shown)
    assert libraries == "[]"
    assert set(ast.literal_eval(ours)) == {
        "services.api",
        "services.api.errors",
        "services.cli",
        "services.cli.command",
        "services.cli.examples",
        "services.cli.main",
        "services.cli.output",
        "services.cli.security",
        "services.cli.standard_output",
        "services.cli.tables",
        "services.common",
        "services.common.addresses",
        "services.common.bounded_file",
        "services.common.client_security",
        "services.common.printable",
        "services.common.quantities",
        "services.common.release",
    }


READ_AND_WHAT_IT_IMPORTED = """
import sys
from services.cli.main import load
load("{}").make_context("sediment", {!r})
print(sorted({{name.partition(".")[0] for name in sys.modules}} & {{
    "alembic", "cryptography", "kafka", "minio", "psycopg", "pydantic", "rich", "sqlalchemy"
}}))
print(sorted(name for name in sys.modules if name.startswith("services.workflows.")))
"""


@pytest.mark.parametrize("name", ["status", "partitions", "topics"])
def test_what_people_type_first_waits_for_grpc_alone(name: str) -> None:
    typed = ["list"] if name == "topics" else []
    assert run("-c", READ_AND_WHAT_IT_IMPORTED.format(name, typed)).stdout == "[]\n[]\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_list_of_commands_matches_the_help_of_each_command(name: str) -> None:
    _, text = COMMANDS[name]
    own = " ".join((load(name).help or "").split())
    assert own.startswith(text.removesuffix("."))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str) -> None:
    shown = CliRunner().invoke(app, [name, "--help"], prog_name="sediment")
    assert shown.exit_code == 0
    assert shown.output.startswith("Usage: sediment " + name)
    assert max(map(len, shown.output.splitlines())) <= 80


def test_help_shows_the_first_sentence_of_every_command_in_full() -> None:
    _, commands = sediment_process("--help").stdout.split("Look:")
    assert "..." not in commands
    shown = sediment("db", "--help").stdout
    assert "settings in the bucket." in shown.partition("Commands:")[2]


@pytest.mark.parametrize(
    "typed",
    [
        "--tls-ca /no.pem --rlmm 127.0.0.1:1 -o json topics list",
        "topics --tls-ca=/no.pem -o json --rlmm 127.0.0.1:1 list",
        "--rlmm=127.0.0.1:1 topics list -o table --output json --tls-ca /no.pem",
    ],
)
def test_options_stand_before_and_behind_the_command(typed: str) -> None:
    shown = sediment(*typed.split())
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr.startswith("sediment: /no.pem: ")


def test_each_option_that_many_commands_have_may_stand_before_the_command() -> None:
    app = command_group()
    app.command()(with_services("rsm", "rlmm", "rlm", has_database=True)(lambda call: None))
    command = get_group(app).commands["<lambda>"]
    assert {flag for param in command.params for flag in param.opts} == OPTIONS_OF_COMMANDS


def test_help_of_topics_delete_names_the_remover_and_undelete() -> None:
    shown = " ".join(sediment("topics", "delete", "--help").stdout.split())
    for text in ("Every RLM removes", "RLM_DELETION_GRACE_MS", "sediment partitions undelete"):
        assert text in shown


def test_the_schema_is_made_and_shown(empty_database_url: str) -> None:
    before = sediment("db", "current", "--database-url", empty_database_url, "-o", "json")
    assert json.loads(before.stdout) == {
        "current": None,
        "known": known_revision(),
        "deletions_frozen_since_ms": None,
    }
    assert sediment("db", "upgrade", "--database-url", empty_database_url).returncode == 0
    after = sediment("db", "current", "--database-url", empty_database_url)
    assert after.stdout == f"database: {known_revision()}\nthis release: {known_revision()}\n"


@pytest.mark.parametrize("command", [("--help",), ("completion", "bash"), ("topics", "--help")])
@pytest.mark.parametrize(
    ("output", "reason"), [(">/dev/full", "No space left on device"), (">&-", "closed")]
)
def test_standard_output_that_takes_nothing_is_reported_in_one_line(
    output: str, reason: str, command: tuple[str, ...]
) -> None:
    done = in_a_shell(f'"$@" {output}', *command)
    assert (done.returncode, done.stderr.splitlines()) == (
        3,
        [f"sediment: standard output: {reason}; what was printed before is incomplete"],
    )


@pytest.mark.parametrize("errors", ["2>/dev/full", "2>&-"])
def test_exit_code_does_not_depend_on_standard_error(errors: str) -> None:
    assert in_a_shell(f'"$@" {errors}', "ship", "/nowhere").returncode == 2


def test_a_reader_that_leaves_early_gets_no_traceback() -> None:
    done = in_a_shell('"$@" | true', "completion", "bash")
    assert (done.returncode, done.stderr) == (0, "")


def test_characters_that_the_encoding_lacks_are_escaped(tmp_path: Path) -> None:
    settings = tmp_path / "rsm.env"
    settings.write_text("NO SETTING\n")
    odd = settings.rename(tmp_path / "r\u00e9glages.env")
    done = in_a_shell('PYTHONIOENCODING=ascii "$@" 2>&1', "config", "check", str(odd))
    assert r"r\xe9glages.env" in done.stdout
    assert (done.returncode, len(done.stdout.splitlines())) == (2, 1)


def in_a_shell(script: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a script of the shell in which "$@" is the command with its arguments."""
    command = [sys.executable, "-m", "services.cli", *arguments]
    return subprocess.run(
        ["bash", "-c", script, "bash", *command],
        env={**os.environ, **own_environment({})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
