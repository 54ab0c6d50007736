"""Encode and decode the parts of a Fetch without protobuf's copies of the records.

A part has its records first, and behind them everything else as protobuf writes it: protobuf reads
fields in any order. `make bench BENCH=rlm_fetch_hit` measures what this saves.
"""

from collections.abc import Callable, Iterator
from typing import Any

import grpc

from services.api.remote_log_manager import FetchPart
from services.rpc.converters.log import fetch_part_from_proto, fetch_part_to_proto
from services.rpc.wire import Handler, length_to_wire, read_length
from tieredstorage.v1 import remote_log_manager_pb2 as pb

_RECORDS = b"\x3a"


def part_to_wire(part: FetchPart) -> bytes:
    """Encode a FetchResponse."""
    records, rest = part.record_batches, fetch_part_to_proto(part, with_records=False)
    if not records:
        return rest.SerializeToString()
    return b"".join((_RECORDS, length_to_wire(len(records)), records, rest.SerializeToString()))


class ReceivedPart:
    """A FetchResponse whose records, if they are its first field, protobuf has not copied."""

    __slots__ = ("_records", "_rest")

    def __init__(self, message: bytes) -> None:
        """Decode a message.

        Raises:
            DecodeError: of protobuf, if the message is malformed.
        """
        length = read_length(message, 1) if message[:1] == _RECORDS else None
        if length is None or sum(length) > len(message):
            self._rest = pb.FetchResponse.FromString(message)
            self._records = self._rest.record_batches
            return
        size, at = length
        self._rest = pb.FetchResponse.FromString(message[at + size :])
        # As in protobuf, the last one counts of a field that is there twice.
        self._records = self._rest.record_batches or message[at : at + size]

    def message(self) -> pb.FetchResponse:
        """Return protobuf's message."""
        message = pb.FetchResponse(record_batches=self._records)
        message.MergeFrom(self._rest)
        return message

    def part(self) -> FetchPart:
        """Return the part.

        Raises:
            InvalidRequestError: if a field has a value that this release does not know.
        """
        return fetch_part_from_proto(self._rest, self._records)


def parts_handler(
    behavior: Callable[[pb.FetchRequest, grpc.ServicerContext], Iterator[bytes]],
) -> Handler:
    """Return a handler of fetches whose `behavior` yields parts that part_to_wire wrote."""
    return grpc.unary_stream_rpc_method_handler(behavior, pb.FetchRequest.FromString)


def fetching_parts_method(channel: grpc.Channel) -> Any:
    """Return the client's method for fetches, which streams ReceivedParts."""
    return channel.unary_stream(
        "/tieredstorage.v1.RemoteLogManager/Fetch",
        request_serializer=pb.FetchRequest.SerializeToString,
        response_deserializer=ReceivedPart,
    )
