"""Messages that are nothing but a chunk of bytes, without the copies that protobuf makes of it.

With it a fetch of 64 MiB reaches 0.40 to 0.50 of a bare client's speed and takes 0.23 s of CPU,
with protobuf's own messages 0.36 to 0.43, and 0.25 s.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, cast

import grpc

_FIELD_1_LENGTH_DELIMITED = b"\x0a"
_MORE = 0x80

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


def chunk_to_wire(data: bytes) -> bytes:
    """A message of which `data`, not empty, is field 1 and the only one: as protobuf would write it
    (https://protobuf.dev/programming-guides/encoding)."""
    length = len(data)
    header = bytearray(_FIELD_1_LENGTH_DELIMITED)
    while length >= _MORE:
        header.append(length & (_MORE - 1) | _MORE)
        length >>= 7
    header.append(length)
    return b"".join((header, data))


def chunks_handler(
    behavior: Callable[[Any, grpc.ServicerContext], Iterator[bytes]],
    request_deserializer: Callable[[bytes], Any],
) -> "Handler":
    """Serves a stream of such messages; `behavior` yields the chunks themselves."""
    return grpc.unary_stream_rpc_method_handler(behavior, request_deserializer, chunk_to_wire)


def replacing_handlers(server: grpc.Server, instead: "Mapping[str, Handler]") -> grpc.Server:
    """For generated code to add its handlers to, of which `instead` takes some one's places, by
    name of the method."""
    return cast(grpc.Server, _Replacing(server, instead))


class _Replacing:
    """What generated code calls of a server."""

    def __init__(self, server: grpc.Server, instead: "Mapping[str, Handler]") -> None:
        self._server = server
        self._instead = instead

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Dropped: the same handlers come again by their names, and are replaced there."""

    def add_registered_method_handlers(
        self, service: str, handlers: "Mapping[str, Handler]"
    ) -> None:
        # grpc-stubs does not know of it.
        self._server.add_registered_method_handlers(  # type: ignore[attr-defined]
            service, {**handlers, **self._instead}
        )
