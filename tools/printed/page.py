"""Write the JSON reference: `python -m tools.printed.page [DIRECTORY]`.

Into a directory: what docs/reference/json.md has on the site only, and json/ with the schemas.
Without one (`make docs`): the fields that are promised, in contract.json.

The sources are the descriptions beside this file. Tests check every document that a command prints
against them, and refuse fields that are not described (tests/harness/sediment_command.py).
"""

import json
import sys
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


def json_markdown() -> str:
    """Return what follows the page's introduction."""
    lines = ["| command | prints | schema |", "|---|---|---|"]
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
    if sys.argv[1:]:
        directory = Path(sys.argv[1])
        (directory / "json").mkdir(parents=True, exist_ok=True)
        for file, schema_text in schema_texts().items():
            (directory / "json" / file).write_text(schema_text)
        (directory / "json.md").write_text(json_markdown() + "\n")
    else:
        promise(fields_of(DOCUMENTS))
