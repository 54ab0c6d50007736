"""Find the topics that a request names, and the roles that its values need."""

from collections.abc import Iterable, Iterator
from functools import cache
from operator import attrgetter
from typing import Any, TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from services.api.roles import PACKAGE, Roles, Rule, Topics
from services.rpc.server.policy import ALL_TOPICS, AllTopics

# The fields of a message in which partitions are, and where within each; empty for a partition.
_Places: TypeAlias = tuple[tuple[FieldDescriptor, "_Places"], ...]
_PARTITION = f"{PACKAGE}.TopicIdPartition"


def topics_of(rule: Rule, request: Any) -> "frozenset[str] | AllTopics":
    """Return the topics that a grant must cover for this request."""
    if rule.topics is Topics.ALL:
        return ALL_TOPICS
    if rule.topics is Topics.FILTER:
        value = attrgetter(rule.filter)(request)
        names = frozenset([value] if isinstance(value, str) else value)
        # No filter, and a filter for no name, list everything.
        return names if names and "" not in names else ALL_TOPICS
    if rule.topics is Topics.NAMED:
        return frozenset(_names_in(request, places_of(request.DESCRIPTOR)))
    return frozenset()


def roles_of(rule: Rule, request: Any) -> frozenset[Roles]:
    """Return sets of roles; the caller needs one role of each set for this request."""
    narrowed = rule.by_value
    # A chunk of a copy is parsed to no message; the header before it decided.
    if narrowed is None or not isinstance(request, Message):
        return frozenset((rule.roles,))
    names = set(_values_at(request, narrowed.path.split(".")))
    return frozenset(narrowed.roles.get(name, rule.roles) for name in names) or frozenset(
        (rule.roles,)
    )


def _names_in(message: Any, places: _Places) -> Iterator[str]:
    for field, within in places:
        for part in _parts(message, field):
            if within:
                yield from _names_in(part, within)
            else:
                yield part.topic


@cache
def places_of(kind: Descriptor) -> _Places:
    """Return where a message has partitions: all of them, also in fields that come later."""
    found: list[tuple[FieldDescriptor, _Places]] = []
    for field in kind.fields:
        inner = field.message_type
        if inner is None:
            continue
        if inner.full_name == _PARTITION:
            found.append((field, ()))
        elif within := places_of(inner):
            found.append((field, within))
    return tuple(found)


def _parts(message: Message, field: FieldDescriptor) -> Iterable[Any]:
    if field.is_repeated:
        return getattr(message, field.name)  # type: ignore[no-any-return]
    return (getattr(message, field.name),) if message.HasField(field.name) else ()


def _values_at(message: Any, path: list[str]) -> Iterator[str]:
    """Return the names of the values at the path, as `value_names` has them."""
    name, *rest = path
    field = message.DESCRIPTOR.fields_by_name[name]
    if rest:
        for part in _parts(message, field):
            yield from _values_at(part, rest)
    else:
        yield value_names(field).get(getattr(message, name), "")


@cache
def value_names(field: FieldDescriptor) -> dict[int, str]:
    """Return the names of an enum's values without their prefix, that of the unspecified value.

    A bool has two.
    """
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return {False: f"without {field.name}", True: f"with {field.name}"}
    assert field.enum_type is not None
    values = field.enum_type.values
    prefix = values[0].name.removesuffix("UNSPECIFIED")
    return {value.number: value.name.removeprefix(prefix) for value in values}
