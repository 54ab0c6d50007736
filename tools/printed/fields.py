"""Describe the fields of JSON documents: each function returns a part of a JSON Schema."""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

Schema = dict[str, Any]


def text(meaning: str) -> Schema:
    return {"type": "string", "description": meaning}


def integer(meaning: str) -> Schema:
    return {"type": "integer", "description": meaning}


def number(meaning: str) -> Schema:
    return {"type": "number", "description": meaning}


def boolean(meaning: str) -> Schema:
    return {"type": "boolean", "description": meaning}


def id_of(what: str) -> Schema:
    """Describe an id in Kafka's form: 22 characters of base64url."""
    return {"type": "string", "pattern": "^[A-Za-z0-9_-]{22}$", "description": f"The id of {what}."}


def time_ms(meaning: str) -> Schema:
    return integer(f"{meaning} Milliseconds since 1970, UTC.")


def one_of(values: type[Enum] | Iterable[str], meaning: str, *, by_name: bool = False) -> Schema:
    """Describe a text that is one of an enum's values (or names), or of these."""
    if not isinstance(values, type):
        return {"enum": [*values], "description": meaning}
    return {
        "enum": [each.name if by_name else each.value for each in values],
        "description": meaning,
    }


def nullable(schema: Schema) -> Schema:
    """Allow null besides."""
    made = dict(schema)
    if "enum" in made:
        made["enum"] = [*made["enum"], None]
    else:
        made["type"] = [made["type"], "null"]
    return made


def list_of(items: Schema, meaning: str) -> Schema:
    return {"type": "array", "items": items, "description": meaning}


def map_of(values: Schema, meaning: str) -> Schema:
    """Describe an object whose keys are data."""
    return {"type": "object", "additionalProperties": values, "description": meaning}


def fields(meaning: str, properties: Mapping[str, Schema]) -> Schema:
    """Describe an object: each field is always there, unless its name ends with "?"."""
    return {
        "type": "object",
        "description": meaning,
        "required": [name for name in properties if not name.endswith("?")],
        "properties": {name.removesuffix("?"): schema for name, schema in properties.items()},
    }


def counts(values: type[Enum], meaning: str) -> Schema:
    """Describe an object with a count for each value of an enum."""
    return fields(meaning, {each.value: integer(f"How many are {each.value}.") for each in values})


def closed(schema: Any) -> Any:
    """Return a schema that refuses fields that it does not describe."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    if isinstance(made.get("properties"), dict) and made.get("type") is not None:
        made["additionalProperties"] = False
    return made
