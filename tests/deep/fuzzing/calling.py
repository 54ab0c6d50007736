"""Call any RPC of a service through its raw stub; keep what was answered."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import status_pb2
from grpc_status import rpc_status

from tests.harness.every_rpc import ENDLESS
from tieredstorage.v1 import remote_log_manager_pb2 as log_pb
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as metadata_pb
from tieredstorage.v1 import remote_storage_manager_pb2 as storage_pb

METHODS: Mapping[str, Sequence[MethodDescriptor]] = {
    "rlmm": tuple(metadata_pb.DESCRIPTOR.services_by_name["RemoteLogMetadataManager"].methods),
    "rsm": tuple(storage_pb.DESCRIPTOR.services_by_name["RemoteStorageManager"].methods),
    "rlm": tuple(log_pb.DESCRIPTOR.services_by_name["RemoteLogManager"].methods),
}
"""The RPCs of each service."""
_DEADLINE_S = 60.0


@dataclass(frozen=True)
class Answer:
    """What a call was answered with.

    Attributes:
        status: with its details; None where the call succeeded, or the server gave none.
    """

    code: grpc.StatusCode
    responses: Sequence[Message] = ()
    said: str = ""
    status: status_pb2.Status | None = None

    @property
    def is_ok(self) -> bool:
        return self.code is grpc.StatusCode.OK


def call(channel: grpc.Channel, method: MethodDescriptor, requests: Sequence[Message]) -> Answer:
    """Send the one request, or all of them if the method takes a stream."""
    return _call(channel, method, [each.SerializeToString() for each in requests])


def call_with_bytes(channel: grpc.Channel, method: MethodDescriptor, content: bytes) -> Answer:
    """Send one message of any bytes."""
    return _call(channel, method, [content])


def _call(channel: grpc.Channel, method: MethodDescriptor, requests: Sequence[bytes]) -> Answer:
    sent = iter(requests) if method.client_streaming else requests[0]
    try:
        answered = _callable(channel, method)(sent, timeout=_DEADLINE_S)
        if method.name in ENDLESS:
            responses: tuple[Message, ...] = (next(answered),)
            answered.cancel()
        else:
            responses = tuple(answered) if method.server_streaming else (answered,)
    except grpc.RpcError as e:
        failed: Any = e  # a grpc.Call, which its type does not say
        return Answer(failed.code(), said=failed.details(), status=rpc_status.from_call(failed))
    return Answer(grpc.StatusCode.OK, responses)


def _callable(channel: grpc.Channel, method: MethodDescriptor) -> Any:
    makers: dict[tuple[bool, bool], Any] = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, False): channel.stream_unary,
        (True, True): channel.stream_stream,
    }
    return makers[method.client_streaming, method.server_streaming](
        f"/{method.containing_service.full_name}/{method.name}",
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )


def statuses_in(message: Message) -> Iterator[status_pb2.Status]:
    """Every google.rpc.Status of an answer: what became of the items of a batch."""
    for each in messages_in(message):
        if isinstance(each, status_pb2.Status):
            yield each
        else:
            yield from statuses_in(each)


def messages_in(message: Message) -> Iterator[Message]:
    """Those that stand directly in the message, alone or in a list."""
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            yield from value if field.is_repeated else [value]
