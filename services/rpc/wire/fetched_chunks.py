"""FetchLogSegmentResponse: a chunk of bytes, and nothing else.

Written so, a fetch of 64 MiB reaches 0.40 to 0.50 of a bare client's speed and takes 0.23 s of
CPU, with protobuf's own messages 0.36 to 0.43, and 0.25 s.
"""

from collections.abc import Callable, Iterator
from typing import Any

import grpc

from services.rpc.wire.handlers import Handler
from services.rpc.wire.lengths import length_to_wire, read_length
from tieredstorage.v1 import remote_storage_manager_pb2 as pb

_DATA = b"\x0a"


def chunk_to_wire(data: bytes) -> bytes:
    """A message of which `data`, not empty, is field 1 and the only one."""
    return b"".join((_DATA, length_to_wire(len(data)), data))


def chunk_from_wire(message: bytes) -> bytes:
    """The `data` of a message; raises protobuf's DecodeError where it is none."""
    length = read_length(message, 1) if message[:1] == _DATA else None
    if length is not None and sum(length) == len(message):
        return message[length[1] :]
    return pb.FetchLogSegmentResponse.FromString(message).data


def chunks_handler(
    behavior: Callable[[pb.FetchLogSegmentRequest, grpc.ServicerContext], Iterator[bytes]],
) -> Handler:
    """Serves a stream of such messages; `behavior` yields the chunks themselves."""
    parse = pb.FetchLogSegmentRequest.FromString
    return grpc.unary_stream_rpc_method_handler(behavior, parse, chunk_to_wire)


def fetching_method(channel: grpc.Channel) -> Any:
    """As of generated code, but that it streams the chunks themselves."""
    return channel.unary_stream(
        "/tieredstorage.v1.RemoteStorageManager/FetchLogSegment",
        request_serializer=pb.FetchLogSegmentRequest.SerializeToString,
        response_deserializer=chunk_from_wire,
    )
