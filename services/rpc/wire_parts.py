"""Encode and decode the parts of a Fetch without protobuf's copies of the records.

A part has its records first, and behind them everything else as protobuf writes it: protobuf reads
fields in any order. `make bench BENCH=rlm_fetch_hit` measures what this saves.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import grpc

from services.api.remote_log_manager import FetchPart
from services.rpc.converters.log import fetch_part_from_proto, fetch_part_to_proto
from services.rpc.wire import Handler, length_to_wire, read_length
from tieredstorage.v1 import remote_log_manager_pb2 as pb

_RECORDS = b"\x3a"


def part_to_wire(part: FetchPart) -> bytes:
    """Encode a FetchResponse."""
    rest, size = fetch_part_to_proto(part, with_records=False).SerializeToString(), part.size_bytes
    return b"".join((_RECORDS, length_to_wire(size), *part.pieces, rest)) if size else rest


# Most parts of a read differ in their records only, and converting the rest costs as much as a copy
# of the records. A rest with many aborted transactions is long, and is not kept.
_KEPT_BYTES = 512


@lru_cache(maxsize=128)
def _part_without_records(rest: bytes) -> FetchPart:
    return fetch_part_from_proto(pb.FetchResponse.FromString(rest), b"")


class ReceivedPart:
    """A FetchResponse whose records are a view of the message, if they are its first field."""

    __slots__ = ("_records", "_rest", "_rest_bytes")

    def __init__(self, message: bytes) -> None:
        """Decode a message.

        Raises:
            DecodeError: of protobuf, if the message is malformed.
        """
        length = read_length(message, 1) if message[:1] == _RECORDS else None
        size, at = (0, 0) if length is None or sum(length) > len(message) else length
        self._rest_bytes = message[at + size :]
        self._rest = pb.FetchResponse.FromString(self._rest_bytes)
        # As in protobuf, the last one counts of a field that is there twice.
        again = self._rest.record_batches
        self._records = memoryview(again) if again else memoryview(message)[at : at + size]

    def message(self) -> pb.FetchResponse:
        """Return protobuf's message."""
        message = pb.FetchResponse(record_batches=bytes(self._records))
        message.MergeFrom(self._rest)
        return message

    def part(self) -> FetchPart:
        """Return the part.

        Raises:
            InvalidRequestError: if a field has a value that this release does not know.
        """
        if len(self._rest_bytes) > _KEPT_BYTES:
            return fetch_part_from_proto(self._rest, self._records)
        part = _part_without_records(self._rest_bytes)
        return replace(part, pieces=(self._records,)) if self._records else part


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
