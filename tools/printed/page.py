"""Write docs/reference/json.md and the schemas in docs/reference/json: `make docs`.

The sources are the descriptions beside this file. Tests check every document that a command prints
against them, and refuse fields that are not described (tests/harness/sediment_command.py).
"""

import json
from collections.abc import Iterator
from pathlib import Path

from tools.printed import administration, checks, partitions, retention
from tools.printed.contract import fields_of, promise
from tools.printed.fields import Schema

DOCUMENTS = (
    *checks.DOCUMENTS,
    *partitions.DOCUMENTS,
    *retention.DOCUMENTS,
    *administration.DOCUMENTS,
)

_HEADER = """# JSON output

What each command of `sediment` prints with `-o json`: one object, or one object per line. The files
in [json/](json/) are JSON Schemas (2020-12) of one object each. Written by `make docs` from
`tools/printed/`; the tests check every document that they read against its schema.

## What stays

Within a major version fields are only added, and so are values of a field with a list of values.
A field keeps its name, its type and its meaning, and stays required if it is. Ignore fields that
you do not know: the schemas allow them. Texts for people (`text`, `message`, `detail`, `reason`,
`verdict`, `notes` and the like) may change with any release: compare none of them.

Ids are text in Kafka's form (base64url, 22 characters). Times (`_ms`) are milliseconds since 1970.
Ranges of offsets are inclusive at both ends. A command that did its work prints its document
whatever the exit code says of it (`status` 2, `ship` 3, `sweep` 1); one that could not prints no
document, or not all lines, and says why on standard error. Exit codes are in each `--help`.
"""


def json_markdown() -> str:
    """Return the whole page."""
    lines = [_HEADER, "| command | prints | schema |", "|---|---|---|"]
    lines += [
        f"| `sediment {command}` | {'a line per object' if each.is_listed else 'one object'} "
        f"| [{each.name}](json/{each.name}.schema.json) |"
        for each in DOCUMENTS
        for command in each.commands
    ]
    for each in DOCUMENTS:
        lines += ["", f"## {', '.join(each.commands)}"]
        for kind in each.kinds:
            lines += ["", kind["description"], "", "| field | type | meaning |", "|---|---|---|"]
            lines += _rows(kind, "")
    return "\n".join(lines)


def _rows(schema: Schema, path: str) -> Iterator[str]:
    for name, of in schema["properties"].items():
        shown = f"{path}{name}"
        optional = "" if name in schema["required"] else ", not always"
        yield f"| `{shown}` | {_type(of)}{optional} | {of['description']} |"
        inner = of.get("items", of.get("additionalProperties", of))
        if "properties" in inner:
            suffix = "[]." if "items" in of else ".*." if inner is not of else "."
            yield from _rows(inner, f"{shown}{suffix}")


def _type(schema: Schema) -> str:
    if "enum" in schema:
        return " / ".join("null" if value is None else f"`{value}`" for value in schema["enum"])
    kind = schema["type"]
    return kind if isinstance(kind, str) else " or ".join(kind)


def schema_texts() -> dict[str, str]:
    """Return the text of each schema file, by its name."""
    return {
        f"{each.name}.schema.json": json.dumps(each.schema(), indent=2) + "\n" for each in DOCUMENTS
    }


if __name__ == "__main__":
    docs = Path(__file__).parents[2] / "docs" / "reference"
    for old in (docs / "json").glob("*.schema.json"):
        old.unlink()
    for file, schema_text in schema_texts().items():
        (docs / "json" / file).write_text(schema_text)
    (docs / "json.md").write_text(json_markdown() + "\n")
    promise(fields_of(DOCUMENTS))
