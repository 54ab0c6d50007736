"""Compile converters between dataclasses of services.api and messages with fields of equal names.

A field is converted by its annotation: a UUID to its text, an enum by the name of its value, a
dataclass by its own converter, a tuple item by item, anything else as it is. What may be an error
is a Status, or a message of a result and an error. None is an absent field: an `optional` one, a
message, or an empty text or unspecified enum. Each pair of types is compiled once, when its module
is imported, and fails there if their fields differ.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from operator import attrgetter
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, get_args, get_origin
from typing import get_type_hints as type_hints_of
from uuid import UUID

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from services.api.errors import InvalidRequestError, RemoteStorageError
from services.api.ids import uuid_from_text, uuid_to_text
from services.api.validation import require, within
from services.rpc.statuses import error_of, outcome_of, status_of, status_of_outcome

D = TypeVar("D")
E = TypeVar("E", bound=Enum)
M = TypeVar("M", bound=Message)
T = TypeVar("T")
V = TypeVar("V", bound=int)
V_co = TypeVar("V_co", bound=int, covariant=True)
Message_contra = TypeVar("Message_contra", contravariant=True)
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_MESSAGES: dict[object, type[Message]] = {}


class WireEnum(Protocol[V_co]):
    """A generated enum, whose numbers are looked up by name."""

    DESCRIPTOR: EnumDescriptor

    def Value(self, name: str) -> V_co: ...


class EnumConverter(Generic[E, V]):
    """Convert between an enum of services.api and the generated one, whose names have a prefix."""

    def __init__(self, ours: type[E], wire: WireEnum[V]) -> None:
        prefix = wire.DESCRIPTOR.values[0].name.removesuffix("UNSPECIFIED")
        self._to_wire = {member: wire.Value(prefix + member.name) for member in ours}
        self._from_wire = {number: member for member, number in self._to_wire.items()}
        register(ours, self.to_proto, self.from_proto)

    def members(self) -> Iterable[E]:
        return self._to_wire.keys()

    def knows(self, number: V) -> bool:
        return number in self._from_wire

    def to_proto(self, member: E) -> V:
        return self._to_wire[member]

    def from_proto(self, number: V, field: str) -> E:
        """Raise InvalidRequestError for UNSPECIFIED and for numbers of a later release."""
        member = self._from_wire.get(number)
        if member is None:
            raise InvalidRequestError(f"{field}: must be set to a known value, is {number}")
        return member


class _Value(NamedTuple):
    """How the values of one type are written and read; None if they are the same in both.

    `read_message` reads a message without the name of its field, in lists.
    """

    write: Callable[[Any], Any] | None
    read: Callable[[Any, str], Any] | None
    read_message: Callable[[Any], Any] | None = None


_PLAIN = _Value(None, None)
_EMPTY_IS_NONE = (FieldDescriptor.CPPTYPE_STRING, FieldDescriptor.CPPTYPE_ENUM)
_VALUES: dict[object, _Value] = {UUID: _Value(uuid_to_text, uuid_from_text)}
# Of one of two classes, by the implementation of protobuf.
_Field: TypeAlias = Any
_Getter: TypeAlias = Callable[[Any], Any]


def register(ours: object, write: Callable[[D], Any], read: Callable[[Any, str], D]) -> None:
    """Convert fields of the type `ours` so; `read` gets the value and the name of the field."""
    _VALUES[ours] = _Value(write, read)


def register_message(ours: type[D], write: Callable[[D], Any], read: Callable[[Any], D]) -> None:
    """Convert fields of the dataclass `ours` so, to messages and back."""

    def read_within(message: Any, field: str) -> D:
        with within(field):
            return read(message)

    _VALUES[ours] = _Value(write, read_within, read)


def require_set(message: Message, field: str) -> None:
    """Raise InvalidRequestError if the message field `field` is absent."""
    require(message.HasField(field), field, "must be set")


def items_from_proto(
    messages: Iterable[Message_contra], field: str, read: Callable[[Message_contra], T]
) -> tuple[T, ...]:
    """Read each message; add its index in `field` to an InvalidRequestError."""
    items: list[T] = []
    try:
        for message in messages:
            items.append(read(message))
    except InvalidRequestError as e:
        raise type(e)(f"{field}[{len(items)}].{e}") from e
    return tuple(items)


def converters(
    ours: type[D],
    wire: type[M],
    *,
    names: Mapping[str, str] = _NOTHING,
    unset: Mapping[str, Enum] = _NOTHING,
    besides: Collection[str] = (),
    without: Collection[str] = (),
) -> tuple[Callable[[D], M], Callable[[M], D]]:
    """Return the functions that write and read messages of a dataclass, also within others.

    Args:
        names: of fields of the message that have another name than in the dataclass.
        unset: the values of enums that are not specified; by default these are refused.
        besides: fields of the message that the dataclass does not have, such as a page's size.
        without: fields of the dataclass, which have a default, that the message does not have.

    Raises:
        TypeError: the message has fields that the dataclass lacks, or the other way around.
    """
    hints, known = type_hints_of(ours), {field.name: field for field in wire.DESCRIPTOR.fields}
    own = [each for each in fields(ours) if each.name not in without]  # type: ignore[arg-type]
    ours_by_name = {names.get(each.name, each.name): each for each in own}
    different = ours_by_name.keys() ^ (known.keys() - set(besides))
    if different:
        raise TypeError(f"{ours.__name__} and {wire.__name__} differ: {sorted(different)}")
    writers: list[tuple[str, str, Callable[[Any], Any] | None]] = []
    readers: list[tuple[str, _Getter]] = []
    for name, each in ours_by_name.items():
        hint, may_be_none = without_none(hints[each.name])
        value = value_of(hint, known[name])
        write = value.write
        if may_be_none and write is not None:
            write = _unless_none(write)
        writers.append((name, each.name, write))
        default = _default_of(each, may_be_none, unset)
        readers.append((each.name, getter_of(known[name], value, default)))

    def to_proto(value: D) -> M:
        given = {
            name: getattr(value, attribute) if write is None else write(getattr(value, attribute))
            for name, attribute, write in writers
        }
        return wire(**given)

    def from_proto(message: M) -> D:
        return ours(**{name: read(message) for name, read in readers})

    register_message(ours, to_proto, from_proto)
    _MESSAGES[ours] = wire
    return to_proto, from_proto


def is_whole_message(hint: Any, wire: type[Message] | None = None) -> bool:
    """Return whether `converters` was given a type, for this message if one is named."""
    return hint in _MESSAGES and wire in (None, _MESSAGES[hint])


def without_none(hint: Any) -> tuple[Any, bool]:
    """Return the type of a field, and whether it may be None."""
    kinds = get_args(hint) if get_origin(hint) is UnionType else ()
    if NoneType not in kinds or RemoteStorageError in kinds:
        return hint, False
    (inner,) = (each for each in get_args(hint) if each is not NoneType)
    return inner, True


def _unless_none(write: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else write(value)


def value_of(hint: Any, field: _Field) -> _Value:
    """Return how values of a type are written to a field and read from it."""
    if hint in _VALUES:
        return _VALUES[hint]
    if RemoteStorageError in get_args(hint):
        return _of_outcome(hint, field)
    if get_origin(hint) in (tuple, list, Sequence):
        return _of_items(value_of(get_args(hint)[0], field))
    if get_origin(hint) is Mapping:
        return _Value(None, lambda entries, _: dict(entries))
    if is_dataclass(hint):
        assert isinstance(hint, type)
        assert field.message_type is not None
        converters(hint, GetMessageClass(field.message_type))
        return _VALUES[hint]
    if isinstance(hint, type) and issubclass(hint, Enum):
        EnumConverter(hint, EnumTypeWrapper(field.enum_type))
        return _VALUES[hint]
    return _PLAIN


def _of_items(item: _Value) -> _Value:
    write, read, read_message = item
    if write is None or read is None:
        return _Value(None, lambda values, _: tuple(values))

    def read_all(values: Iterable[Any], field: str) -> tuple[Any, ...]:
        if read_message is not None:
            return items_from_proto(values, field, read_message)
        return tuple(read(value, f"{field}[{index}]") for index, value in enumerate(values))

    return _Value(lambda values: [write(value) for value in values], read_all)


def _of_outcome(hint: Any, field: _Field) -> _Value:
    """Return how the outcome of an item is written: an error, or None or a result."""
    (ours,) = (each for each in get_args(hint) if each is not RemoteStorageError)
    if ours is NoneType:
        return _Value(status_of_outcome, lambda status, _: outcome_of(status), outcome_of)
    wire: Any = GetMessageClass(field.message_type)
    write, _, read = value_of(ours, field.message_type.fields_by_name["result"])
    assert write is not None
    assert read is not None

    def to_proto(outcome: Any) -> Any:
        if isinstance(outcome, RemoteStorageError):
            return wire(error=status_of(outcome))
        return wire(result=write(outcome))

    def from_proto(message: Any) -> Any:
        return read(message.result) if message.HasField("result") else error_of(message.error)

    return _Value(to_proto, lambda message, _: from_proto(message), from_proto)


def _default_of(each: "Field[Any]", may_be_none: bool, unset: Mapping[str, Enum]) -> Any:
    """Return the value of a field that is absent; MISSING if it must be set."""
    if may_be_none:
        return None
    return unset.get(each.name, each.default if is_dataclass(each.default) else MISSING)


def getter_of(field: _Field, value: _Value, default: Any) -> _Getter:
    """Return what reads a field; an absent one is `default`, or is refused if that is MISSING."""
    name, read = field.name, value.read
    plain: _Getter = attrgetter(name)
    get = plain if read is None else lambda message: read(plain(message), name)

    def get_required(message: Any) -> Any:
        require_set(message, name)
        return get(message)

    if field.is_repeated:
        return get
    if field.has_presence:
        if default is not MISSING:
            return lambda message: get(message) if message.HasField(name) else default
        return get if field.message_type is None else get_required
    if default is MISSING or field.cpp_type not in _EMPTY_IS_NONE:
        return get
    return lambda message: get(message) if getattr(message, name) else default
