"""Encode and decode bulk messages without protobuf's copies (`make bench BENCH=rsm_fetch`)."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import grpc

from services.api.remote_storage_manager import SegmentChunk
from services.rpc.converters.shared import segment_file
from tieredstorage.v1 import remote_storage_manager_pb2 as pb

_MORE = 0x80
_LONGEST_BYTES = 5  # 32 bits: no message of these services is longer.

_CHUNK, _FILE, _COPIED_DATA = b"\x12", b"\x08", b"\x12"

# The file is one byte while there are fewer than 128 kinds.
_FILE_BYTES = 2
_NUMBERS = {file: bytes([segment_file.to_proto(file)]) for file in segment_file.members()}
_FILES = {number: file for file, number in _NUMBERS.items()}
_DATA = b"\x0a"

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


def length_to_wire(length: int) -> bytes:
    written = bytearray()
    while length >= _MORE:
        written.append(length & (_MORE - 1) | _MORE)
        length >>= 7
    written.append(length)
    return bytes(written)


def read_length(message: bytes, at: int) -> tuple[int, int] | None:
    """Return the length at byte `at` and the position behind it; None if there is none."""
    length = 0
    for index, byte in enumerate(message[at : at + _LONGEST_BYTES]):
        length |= (byte & (_MORE - 1)) << 7 * index
        if byte < _MORE:
            return length, at + index + 1
    return None


def copied_chunk_to_wire(chunk: SegmentChunk) -> bytes:
    """Encode a CopyLogSegmentDataRequest that has only this chunk."""
    head = b"".join((_FILE, _NUMBERS[chunk.file], _COPIED_DATA, length_to_wire(len(chunk.data))))
    size = length_to_wire(len(head) + len(chunk.data))
    return b"".join((_CHUNK, size, head, chunk.data))


def request_to_wire(request: pb.CopyLogSegmentDataRequest | SegmentChunk) -> bytes:
    if isinstance(request, SegmentChunk):
        return copied_chunk_to_wire(request)
    return request.SerializeToString()


def request_from_wire(message: bytes) -> pb.CopyLogSegmentDataRequest | SegmentChunk:
    """Decode a message's chunk as a view into it; decode the whole message if it has no chunk.

    Raises:
        DecodeError: of protobuf, if the message is malformed.
    """
    chunk = _chunk_from_wire(message)
    return pb.CopyLogSegmentDataRequest.FromString(message) if chunk is None else chunk


def copy_handler(
    behavior: Callable[[Iterator[pb.CopyLogSegmentDataRequest | SegmentChunk], Any], Any],
) -> Handler:
    """Return a handler of copies whose `behavior` gets requests as request_from_wire reads them."""
    serialize = pb.CopyLogSegmentDataResponse.SerializeToString
    return grpc.stream_unary_rpc_method_handler(behavior, request_from_wire, serialize)


def copying_method(channel: grpc.Channel) -> Any:
    """Return the client's method for copies, which takes requests that request_to_wire wrote."""
    return channel.stream_unary(
        "/tieredstorage.v1.RemoteStorageManager/CopyLogSegmentData",
        request_serializer=None,
        response_deserializer=pb.CopyLogSegmentDataResponse.FromString,
    )


def _chunk_from_wire(message: bytes) -> SegmentChunk | None:
    if message[:1] != _CHUNK:
        return None
    size = read_length(message, 1)
    if size is None or sum(size) != len(message):
        return None
    tag, number, data_tag = (message[size[1] + i : size[1] + i + 1] for i in range(3))
    file = _FILES.get(number)
    if tag != _FILE or file is None or data_tag != _COPIED_DATA:
        return None
    length = read_length(message, size[1] + _FILE_BYTES + 1)
    if length is None or sum(length) != len(message):
        return None
    return SegmentChunk(file, memoryview(message)[length[1] :])


def fetched_chunk_to_wire(data: bytes | memoryview) -> bytes:
    """Encode a FetchLogSegmentResponse with `data`, which is not empty."""
    return b"".join((_DATA, length_to_wire(len(data)), data))


def fetched_chunk_from_wire(message: bytes) -> memoryview:
    """Decode the `data` of a message, as a view of it if nothing else is there.

    Raises:
        DecodeError: of protobuf, if the message is malformed.
    """
    length = read_length(message, 1) if message[:1] == _DATA else None
    if length is not None and sum(length) == len(message):
        return memoryview(message)[length[1] :]
    return memoryview(pb.FetchLogSegmentResponse.FromString(message).data)


def chunks_handler(
    behavior: Callable[
        [pb.FetchLogSegmentRequest, grpc.ServicerContext], Iterator[bytes | memoryview]
    ],
) -> Handler:
    """Return a handler of fetches whose `behavior` yields the chunks themselves."""
    parse = pb.FetchLogSegmentRequest.FromString
    return grpc.unary_stream_rpc_method_handler(behavior, parse, fetched_chunk_to_wire)


def fetching_method(channel: grpc.Channel) -> Any:
    """Return the client's method for fetches, which streams the chunks themselves."""
    return channel.unary_stream(
        "/tieredstorage.v1.RemoteStorageManager/FetchLogSegment",
        request_serializer=pb.FetchLogSegmentRequest.SerializeToString,
        response_deserializer=fetched_chunk_from_wire,
    )


def replace_handlers(server: grpc.Server, service: str, instead: "Mapping[str, Handler]") -> None:
    """Serve methods by other handlers than those that generated code has added to the server.

    Args:
        service: the name of the gRPC service.
        instead: the handlers by the names of their methods.
    """
    # The last one counts that is registered for a method. grpc-stubs lacks this function.
    server.add_registered_method_handlers(service, instead)  # type: ignore[attr-defined]
