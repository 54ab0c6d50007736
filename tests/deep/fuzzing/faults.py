"""What is put into a sound request to spoil it: by the type of the field, whatever it means."""

import base64
from collections.abc import Iterator, MutableMapping
from typing import Any, Final
from uuid import UUID

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from services.api.errors import InvalidRequestError
from services.api.ids import uuid_from_text
from services.rpc.client.channel import MAX_MESSAGE_BYTES
from tests.deep.fuzzing.world import World

OVER_THE_LIMITS = (1_001, 10_001)
"""Of items in one call: batches take 1,000 at most, lists of partitions 10,000."""
_LARGEST_BYTES = MAX_MESSAGE_BYTES // 2
_NUMBERS: Final[dict[int, list[float]]] = {
    FieldDescriptor.CPPTYPE_INT32: [-(2**31), 2**31 - 1, 2**31 - 2, -1, -2, 0],
    FieldDescriptor.CPPTYPE_INT64: [-(2**63), 2**63 - 1, 2**63 - 2, 2**31, -1, -2, 0],
    FieldDescriptor.CPPTYPE_UINT32: [2**32 - 1, 0],
    FieldDescriptor.CPPTYPE_UINT64: [2**64 - 1, 0],
    FieldDescriptor.CPPTYPE_ENUM: [0, 1, 2, 3, 4, 99, -1, 2**31 - 1],
    FieldDescriptor.CPPTYPE_BOOL: [True, False],
    FieldDescriptor.CPPTYPE_DOUBLE: [float("nan"), float("inf"), -1.0],
    FieldDescriptor.CPPTYPE_FLOAT: [float("nan"), float("inf"), -1.0],
}
_BYTES: Final = [b"", b"\xff" * 129, bytes(70_000)]
_TEXTS: Final = [
    "",
    "\0",
    "a\0b",
    "\N{GRINNING FACE}" * 256,
    "\N{GRINNING FACE}" * 257,
    "x" * 257,
    "x" * 70_000,
    "a line\nand another",
    "'; --%s {0} \\u0000",
    "\u202e\u0301\uffff",
    "..",
    "A" * 22,
    "_" * 22,
    str(UUID(int=0)),
    base64.urlsafe_b64encode(bytes(32)).decode(),
]


@st.composite
def spoilt(draw: st.DrawFn, request: Message, world: World) -> Message:
    """`request` with one field of it, or of a message in it, as it should not be."""
    message, field = draw(st.sampled_from(list(_fields(request))))
    if field.is_repeated:
        _spoil_many(draw, message, field, world)
    elif field.message_type is not None:
        message.ClearField(field.name)
        if draw(st.booleans()):
            getattr(message, field.name).SetInParent()
    elif draw(st.integers(0, 3)) == 0:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, draw(_scalars(field, world, getattr(message, field.name))))
    if draw(st.integers(0, 49)) == 0:
        _swell(draw, request)
    return request


def _fields(message: Any) -> Iterator[tuple[Any, FieldDescriptor]]:
    """Every field of the message and of the messages in it, set or not."""
    for field in message.DESCRIPTOR.fields:
        yield message, field
        value = getattr(message, field.name)
        if isinstance(value, Message):
            if message.HasField(field.name):
                yield from _fields(value)
        elif field.message_type is not None and not isinstance(value, MutableMapping):
            for item in value:
                yield from _fields(item)


def _spoil_many(draw: st.DrawFn, message: Any, field: FieldDescriptor, world: World) -> None:
    values = getattr(message, field.name)
    if isinstance(values, MutableMapping):
        name = draw(st.sampled_from([*_TEXTS, *values]))
        values[name] = draw(st.sampled_from(_TEXTS))
        return
    how = draw(st.sampled_from(["none", "backwards", "twice", "empty", "other"]))
    items = list(values)
    if how == "none" or not items:
        message.ClearField(field.name)
    elif how == "backwards":
        message.ClearField(field.name)
        values.extend(reversed(items))
    elif how == "twice":
        values.append(draw(st.sampled_from(items)))
    elif field.message_type is not None:
        values.add()
    else:
        values.append(draw(_scalars(field, world, items[0])))


def _swell(draw: st.DrawFn, request: Any) -> None:
    """Make a list of the request longer than any call takes."""
    lists = [
        getattr(request, field.name)
        for field in request.DESCRIPTOR.fields
        if field.is_repeated and not isinstance(getattr(request, field.name), MutableMapping)
    ]
    count = draw(st.sampled_from(OVER_THE_LIMITS))
    for items in filter(None, lists):
        if count * (request.ByteSize() + 8) < _LARGEST_BYTES:
            items.extend([items[0]] * (count - len(items)))


def _scalars(field: FieldDescriptor, world: World, before: Any) -> st.SearchStrategy[Any]:
    if field.cpp_type != FieldDescriptor.CPPTYPE_STRING:
        return st.sampled_from(_NUMBERS[field.cpp_type])
    if field.type == FieldDescriptor.TYPE_BYTES:
        return st.sampled_from(_BYTES)
    known = [*world.topics, *world.topic_ids, *world.page_tokens]
    return st.sampled_from([*_TEXTS, *known, *_other_forms(before)]) | st.text(max_size=30)


def _other_forms(text: str) -> list[str]:
    """The same, where it is an id: with hyphens, which is good, and in forms which are not."""
    if len(text) != 22:
        return [text + " ", text[:-1]]
    next_to_last = text[:-1] + chr(ord(text[-1]) + 1)
    forms = [text + "==", text.swapcase(), next_to_last]
    try:
        usual = str(uuid_from_text(text, "id"))
    except InvalidRequestError:
        return forms
    return [*forms, usual, usual.upper(), usual.replace("-", ""), f"{{{usual}}}"]
