"""Make a request of every RPC of the contracts, from the descriptors alone."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from services.api.roles import PACKAGE
from tieredstorage.v1 import remote_log_manager_pb2 as log_pb
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as metadata_pb
from tieredstorage.v1 import remote_storage_manager_pb2 as storage_pb

_STRINGS = FieldDescriptor.CPPTYPE_STRING
_ENUMS = FieldDescriptor.CPPTYPE_ENUM
_NUMBERS = {
    FieldDescriptor.CPPTYPE_INT32,
    FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32,
}
ID = "AAAAAAAAAAAAAAAAAAAAAQ"
ENDLESS = frozenset({"WatchPartitions"})
"""The RPCs whose answers do not end; a test reads the first."""


@dataclass(frozen=True)
class Rpc:
    """An RPC of a service of the contracts."""

    service: str
    name: str
    request: Descriptor
    response: Descriptor
    streams_in: bool
    streams_out: bool

    @property
    def path(self) -> str:
        return f"/{PACKAGE}.{self.service}/{self.name}"

    @property
    def rule(self) -> str:
        return f"{self.service}/{self.name}"

    @cached_property
    def has_topic(self) -> bool:
        """Whether the request names a topic."""
        return "secret" in str(self.message("secret"))

    def message(self, topic: str, value: str = "") -> Message:
        """Return a request about one partition of a topic; `value`: the enum's value to use."""
        return _filled(self.request, topic, value)

    def call(
        self,
        channel: grpc.Channel,
        request: Message,
        read: Callable[[bytes], object] = len,
        timeout_s: float = 30,
    ) -> None:
        """Call once and give each answer to `read`; raises grpc.RpcError."""
        open_ = getattr(channel, f"{_kind(self.streams_in)}_{_kind(self.streams_out)}")
        method = open_(self.path, type(request).SerializeToString, lambda answer: answer)
        answer = method(iter([request]) if self.streams_in else request, timeout=timeout_s)
        for each in answer if self.streams_out else (answer,):
            read(each)
            if self.name in ENDLESS:
                answer.cancel()
                return


def _kind(is_stream: bool) -> str:
    return "stream" if is_stream else "unary"


RPCS = [
    Rpc(
        service.name,
        method.name,
        method.input_type,
        method.output_type,
        method.client_streaming,
        method.server_streaming,
    )
    for file in (storage_pb, metadata_pb, log_pb)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


def _filled(kind: Descriptor, topic: str, value: str) -> Message:
    message = GetMessageClass(kind)()
    for field in _chosen(kind):
        if field.message_type and field.message_type.GetOptions().map_entry:
            continue
        content = _content(field, topic, value)
        if field.is_repeated:
            getattr(message, field.name).append(content)
        elif field.message_type:
            getattr(message, field.name).CopyFrom(content)
        else:
            setattr(message, field.name, content)
    return message


def _chosen(kind: Descriptor) -> Iterator[FieldDescriptor]:
    """Return the fields; of a oneof only the first."""
    for field in kind.fields:
        group = field.containing_oneof
        if group is None or group.fields[0] is field:
            yield field


def _content(field: FieldDescriptor, topic: str, value: str) -> Any:
    if field.message_type:
        return _filled(field.message_type, topic, value)
    if field.cpp_type == _STRINGS:
        if field.type == FieldDescriptor.TYPE_BYTES:
            return b""
        is_id = field.name == "id" or field.name.endswith(("_id", "ids"))
        names_topic = field.name in ("topic", "topics")
        return topic if names_topic else ID if is_id else ""
    if field.cpp_type == _ENUMS:
        assert field.enum_type is not None
        values = {each.name: each.number for each in field.enum_type.values}
        wanted = (number for name, number in values.items() if value and name.endswith(value))
        return next(wanted, list(values.values())[1])
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return value == f"with {field.name}"
    return 1 if field.cpp_type in _NUMBERS else field.default_value
