"""Compile an RPC from the method of the contract that it carries: arguments and results by name.

A parameter is the field of the request that has its name, or the request itself, if `converters`
was given its type for that, as the query of a list. A result is the response, if `converters` was
given that, or else its one field beside the revision of an AtRevision. What has other forms
(streams, answers that their requests complete) is written by hand where it is called and where it
is served.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from inspect import Parameter, signature
from operator import attrgetter
from types import NoneType
from typing import Any, NamedTuple, get_args, get_origin
from typing import get_type_hints as type_hints_of

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from services.api.calls import AtRevision
from services.rpc.converters.fields import getter_of, is_whole_message, value_of, without_none
from tieredstorage.v1 import remote_log_manager_pb2 as rlm_pb
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as rlmm_pb
from tieredstorage.v1 import remote_storage_manager_pb2 as rsm_pb

FIELDS = {"additions": "adds", "segment_ids": "segments", "requests": "partitions"}
"""Fields of requests that have another name than the contract's parameter."""

_REVISION = "revision"


class Rpc(NamedTuple):
    """How a method's arguments and result cross the wire.

    Attributes:
        request: writes the arguments of a call.
        arguments: reads them; raises InvalidRequestError with the path of a field.
        response, result: write and read what the method returns.
    """

    name: str
    request: Callable[[tuple[Any, ...], Mapping[str, Any]], Message]
    arguments: Callable[[Message], dict[str, Any]]
    response: Callable[[Any], Message]
    result: Callable[[Message], Any]


def _snake(rpc: str) -> str:
    """Return the method of an RPC: GetPartitionState is partition_state."""
    return re.sub("(?<!^)(?=[A-Z])", "_", rpc).lower().removeprefix("get_")


_RPCS = {
    _snake(rpc.name): rpc
    for file in (rsm_pb, rlmm_pb, rlm_pb)
    for service in file.DESCRIPTOR.services_by_name.values()
    for rpc in service.methods
}
_RPCS["offsets_for_leader_epochs"] = _RPCS["offset_for_leader_epoch"]


def rpc_of(method: Callable[..., Any]) -> Rpc:
    """Compile the RPC of a method of a contract.

    Raises:
        TypeError: the request has fields that are no parameters, or the other way around.
    """
    rpc = _RPCS[method.__name__]
    return Rpc(rpc.name, *_arguments(rpc, method), *_result(rpc, method))


def served(
    method: Callable[..., Any], manager_of: Callable[[Any], Any] = attrgetter("manager")
) -> Any:
    """Return a servicer's method: it calls that of the contract on the servicer's manager."""
    rpc, name = rpc_of(method), method.__name__

    def serve(servicer: Any, request: Any, _: object) -> Any:
        return rpc.response(getattr(manager_of(servicer), name)(**rpc.arguments(request)))

    return serve


def _arguments(rpc: MethodDescriptor, method: Callable[..., Any]) -> tuple[Any, Any]:
    wire, hints = GetMessageClass(rpc.input_type), type_hints_of(method)
    known = {field.name: field for field in rpc.input_type.fields}
    writers: dict[str, tuple[str, Callable[[Any], Any] | None]] = {}
    readers: list[tuple[str, Callable[[Message], Any]]] = []
    whole: tuple[str, Any, Callable[[Any], Message]] | None = None
    _, *parameters = signature(method).parameters.values()
    for each in parameters:
        name, (hint, may_be_none) = FIELDS.get(each.name, each.name), without_none(hints[each.name])
        is_whole = is_whole_message(hint, wire)
        field = None if is_whole else known.get(name)
        if field is None and not is_whole:
            raise TypeError(f"{method.__name__}: {name} is no field of {wire.__name__}")
        value = value_of(hint, field)
        if field is None:
            assert value.write is not None
            assert value.read_message is not None
            whole = each.name, each.default, value.write
            readers.append((each.name, value.read_message))
            continue
        default = None if may_be_none else MISSING
        if is_whole_message(hint) and each.default is not Parameter.empty:
            default = each.default
        writers[each.name] = name, value.write
        readers.append((each.name, getter_of(field, value, default)))
    missing = known.keys() - {name for name, _ in writers.values()}
    if missing and whole is None:
        raise TypeError(f"{method.__name__} and {rpc.name} differ: {sorted(missing)}")
    order = [each.name for each in parameters if each.kind is not Parameter.KEYWORD_ONLY]

    def request(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Message:
        given = {**dict(zip(order, args, strict=False)), **kwargs}
        of_query = whole and whole[2](given.pop(whole[0], whole[1]))
        fields = {}
        for name, value in given.items():
            field, write = writers[name]
            fields[field] = value if write is None or value is None else write(value)
        message: Message = wire(**fields)
        if of_query is not None:
            message.MergeFrom(of_query)
        return message

    return request, lambda message: {name: read(message) for name, read in readers}


def _result(rpc: MethodDescriptor, method: Callable[..., Any]) -> tuple[Any, Any]:
    wire, hint = GetMessageClass(rpc.output_type), type_hints_of(method)["return"]
    if hint is NoneType:
        return lambda _: wire(), lambda _: None
    if get_origin(hint) is not AtRevision:
        return _value_in(rpc, wire, hint)
    write, read = _value_in(rpc, wire, get_args(hint)[0])

    def response(answer: AtRevision[Any]) -> Any:
        message = write(answer.value)
        message.revision = answer.revision
        return message

    def result(message: Any) -> AtRevision[Any]:
        return AtRevision(read(message), message.revision)

    return response, result


def _value_in(rpc: MethodDescriptor, wire: type[Message], hint: Any) -> tuple[Any, Any]:
    """Return what writes and reads a value as a message, or as the message's field."""
    if is_whole_message(hint, wire):
        value = value_of(hint, None)
        return value.write, value.read_message
    (field,) = (each for each in rpc.output_type.fields if each.name != _REVISION)
    inner, may_be_none = without_none(hint)
    value = value_of(inner, field)
    read = getter_of(field, value, None if may_be_none else MISSING)

    def response(answer: Any) -> Message:
        if answer is None:
            return wire()
        return wire(**{field.name: answer if value.write is None else value.write(answer)})

    if get_origin(hint) is list:
        return response, lambda message: [*read(message)]
    return response, read
