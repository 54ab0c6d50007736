"""Messages that are nothing but a chunk of bytes, without the copies that protobuf makes of it."""

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


def add_handlers(
    add_generated: Callable[[grpc.Server], None],
    instead: "Mapping[str, Handler]",
    server: grpc.Server,
) -> None:
    """What generated code adds to a server, with some handlers replaced, by name of the method."""
    recorded = _Recorder()
    add_generated(cast(grpc.Server, recorded))
    handlers = {**recorded.handlers, **instead}
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(recorded.service, handlers)]
    )
    # As generated code does; grpc-stubs does not know of it.
    server.add_registered_method_handlers(recorded.service, handlers)  # type: ignore[attr-defined]


class _Recorder:
    """What generated code takes for a server."""

    def __init__(self) -> None:
        self.service = ""
        self.handlers: dict[str, Handler] = {}

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """The same ones, in another form."""

    def add_registered_method_handlers(
        self, service: str, handlers: "Mapping[str, Handler]"
    ) -> None:
        self.service, self.handlers = service, dict(handlers)
