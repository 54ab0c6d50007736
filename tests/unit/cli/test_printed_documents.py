"""Check that docs/json and docs/json.md describe every command with -o json."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from typer.core import TyperGroup

from services.cli.main import COMMANDS, load
from tests.harness.printed_documents import check_printed
from tests.printed.page import DOCUMENTS, json_markdown, schema_texts

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_and_the_schemas_are_up_to_date() -> None:
    assert (DOCS / "json.md").read_text().strip() == json_markdown().strip(), "run `make docs`"
    stored = {file.name: file.read_text() for file in (DOCS / "json").iterdir()}
    assert stored == schema_texts(), "run `make docs`"


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
                f"{name} {part}"
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
