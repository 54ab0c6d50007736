"""Whether a refusal names a field: a path that the request's own message types have."""

import re
from collections.abc import Mapping

from google.protobuf.message import Message

_PART = re.compile(r"(?P<name>[a-z_][a-z0-9_]*)(?:\[(?P<index>\d+)\])?")
_SAID = re.compile(r"(?P<path>[a-z_][a-z0-9_.\[\]]*): ")


def names_a_field(said: str, message: Message) -> bool:
    """Whether `said` begins with the path of a field of `message`, a colon and a space.

    An index must be there in the message, and a path that goes on below a repeated field must have
    one: without it nobody knows which item is meant.
    """
    match = _SAID.match(said)
    return match is not None and _exists(match["path"].split("."), message)


def names_a_map_key(said: str, message: Message) -> bool:
    """Whether `said` begins with a key of one of the message's maps and a colon: with the first 64
    characters of a long one, escaped where they cannot be printed."""
    values = [getattr(message, field.name) for field in message.DESCRIPTOR.fields]
    keys = [key for value in values if isinstance(value, Mapping) for key in value]
    return any(said.startswith((f"{key[:64]}:", f"{key[:64]!a}:")) for key in keys)


def _exists(path: list[str], message: Message) -> bool:
    part, *rest = path
    match = _PART.fullmatch(part)
    if match is None or match["name"] not in message.DESCRIPTOR.fields_by_name:
        return False
    field, value = message.DESCRIPTOR.fields_by_name[match["name"]], getattr(message, match["name"])
    if match["index"] is not None:
        if not field.is_repeated or int(match["index"]) >= len(value):
            return False
        value = value[int(match["index"])]
    return not rest or (isinstance(value, Message) and _exists(rest, value))
