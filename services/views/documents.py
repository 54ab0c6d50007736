"""Turn values of the API into JSON: ids as text, enums by their value."""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from uuid import UUID

from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.segments import SegmentLeaderEpoch

Json = dict[str, object]


def fields_as_json(item: object, *names: str) -> Json:
    """Return the fields of a dataclass, or only these attributes; a TopicIdPartition as its own.

    No names: all fields.
    """
    document: Json = {}
    for name in names or [each.name for each in fields(item)]:  # type: ignore[arg-type]  # checked
        value = getattr(item, name)
        document |= (
            fields_as_json(value) if isinstance(value, TopicIdPartition) else {name: _value(value)}
        )
    return document


def _value(value: object) -> object:
    if isinstance(value, UUID):
        return uuid_to_text(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, SegmentLeaderEpoch):
        return [value.leader_epoch, value.start_offset]
    if is_dataclass(value):
        return fields_as_json(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_value(each) for each in value]
    return value
