"""Check that tools/printed describes every command with -o json."""

from collections.abc import Iterator

import pytest
from jsonschema import Draft202012Validator
from typer.core import TyperGroup

from services.cli.command import ListGroup
from services.cli.main import COMMANDS, load
from tests.harness.sediment_command import check_printed
from tools.printed.contract import Field, broken_promises, fields_of, promised
from tools.printed.page import DOCUMENTS, json_markdown, schema_texts


def test_the_page_links_the_schema_of_every_document() -> None:
    page = json_markdown()
    assert [name for name in schema_texts() if f"(json/{name})" not in page] == []


def test_no_field_vanishes_or_changes() -> None:
    assert [*broken_promises(promised(), fields_of(DOCUMENTS))] == []


def test_every_field_is_promised() -> None:
    past = promised()
    assert [path for path in fields_of(DOCUMENTS) if path not in past] == [], "run `make docs`"


ALWAYS = {"type": "integer", "required": True}
LEVEL = {"values": ["OK", "FAIL"], "required": True}


@pytest.mark.parametrize(
    ("past", "now", "problem"),
    [
        (ALWAYS, None, "x: is gone"),
        (ALWAYS, {"type": "string", "required": True}, "x: was integer, is string"),
        (ALWAYS, {"type": ["integer", "null"], "required": True}, "x: was integer, is ["),
        (ALWAYS, {"type": "integer", "required": False}, "x: is not always there any more"),
        (LEVEL, {"values": ["OK"], "required": True}, "x: is never ['FAIL'] any more"),
    ],
)
def test_a_broken_promise_is_named(past: Field, now: Field | None, problem: str) -> None:
    (found,) = broken_promises({"x": past}, {} if now is None else {"x": now})
    assert found.startswith(problem)


def test_more_fields_and_values_break_no_promise() -> None:
    now = {"x": LEVEL | {"values": ["OK", "WARN", "FAIL"]}, "y": ALWAYS}
    assert [*broken_promises({"x": LEVEL}, now)] == []


def test_every_schema_is_one() -> None:
    for each in DOCUMENTS:
        Draft202012Validator.check_schema(each.schema())


def commands_with_json() -> Iterator[str]:
    for name in COMMANDS:
        command = load(name)
        if any(parameter.name == "output" for parameter in command.params):
            yield name
        if isinstance(command, TyperGroup):
            yield from (
                name if isinstance(command, ListGroup) and part == "list" else f"{name} {part}"
                for part, of in command.commands.items()
                if any(parameter.name == "output" for parameter in of.params)
            )


def test_every_command_with_json_is_described() -> None:
    described = [command for each in DOCUMENTS for command in each.commands]
    assert sorted(described) == sorted(commands_with_json())


@pytest.mark.parametrize(
    "printed",
    [
        '{"deployment_id": "AAAAAAAAAAAAAAAAAAAAAA", "new": 1}',
        '{"deployment_id": "no id"}',
        "{}",
    ],
)
def test_a_document_that_is_not_as_described_is_refused(printed: str) -> None:
    with pytest.raises(AssertionError, match="does not describe"):
        check_printed(("db", "deployment-id", "-o", "json"), printed)
