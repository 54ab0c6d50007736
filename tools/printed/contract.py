"""Compare the fields of JSON documents with those that were promised, in contract.json.

`make docs` adds new fields to contract.json. It takes nothing away: a change that breaks the
promise of docs/reference/json.md stays a failed test until a person edits the file, for a major
version.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tools.printed.fields import Schema
from tools.printed.shared import Document

FILE = Path(__file__).parent / "contract.json"
Field = dict[str, Any]
Fields = dict[str, Field]
"""By the document's name, the number of its kind, and the path of the field."""


def promised() -> Fields:
    """Read contract.json."""
    fields: Fields = json.loads(FILE.read_text())
    return fields


def fields_of(documents: Iterable[Document]) -> Fields:
    """Return the fields of all documents."""
    return {
        f"{each.name} {number} {path}": field
        for each in documents
        for number, kind in enumerate(each.kinds)
        for path, field in _inner(kind, "")
    }


def _inner(schema: Schema, path: str) -> Iterator[tuple[str, Field]]:
    """Yield the fields of an object, of each of a list, or of each value of a map."""
    for name, of in schema.get("properties", {}).items():
        yield f"{path}{name}", _field(of, is_required=name in schema["required"])
        yield from _inner(of, f"{path}{name}.")
    for key in ("items", "additionalProperties"):
        if isinstance(of := schema.get(key), dict):
            yield f"{path}*", _field(of, is_required=True)
            yield from _inner(of, f"{path}*.")


def _field(schema: Schema, *, is_required: bool) -> Field:
    if "enum" in schema:
        return {"values": schema["enum"], "required": is_required}
    return {"type": schema["type"], "required": is_required}


def broken_promises(past: Mapping[str, Field], now: Mapping[str, Field]) -> Iterator[str]:
    """Yield what no longer holds of the fields of `past`."""
    for path, was in past.items():
        field = now.get(path)
        if field is None:
            yield f"{path}: is gone"
        elif was.get("type") != field.get("type"):
            yield f"{path}: was {was.get('type', 'one of a list')}, is {field.get('type')}"
        elif gone := [value for value in was.get("values", []) if value not in field["values"]]:
            yield f"{path}: is never {gone} any more"
        elif was["required"] and not field["required"]:
            yield f"{path}: is not always there any more"


def promise(now: Fields) -> None:
    """Add new fields and values to contract.json; keep what is there."""
    kept = promised()
    for path, field in now.items():
        past = kept.setdefault(path, field)
        if "values" in past and "values" in field:
            new = [value for value in field["values"] if value not in past["values"]]
            kept[path] = past | {"values": past["values"] + new}
    FILE.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
