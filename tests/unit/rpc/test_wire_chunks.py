"""Messages of one chunk, written without protobuf: byte for byte what protobuf writes."""

from collections.abc import Mapping
from typing import cast

import grpc
import pytest

from services.rpc.wire_chunks import Handler, chunk_to_wire, chunks_handler, replacing_handlers
from tieredstorage.v1 import remote_storage_manager_pb2 as pb


@pytest.mark.parametrize("size", [1, 127, 128, 16_383, 16_384, 1024 * 1024, 2**21 - 1, 2**21])
def test_a_chunk_is_on_the_wire_as_protobuf_writes_it(size: int) -> None:
    data = bytes(size)
    assert chunk_to_wire(data) == pb.FetchLogSegmentResponse(data=data).SerializeToString()


class Server:
    """Keeps what is added to it."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}

    def add_registered_method_handlers(
        self, service: str, handlers: "Mapping[str, Handler]"
    ) -> None:
        self.handlers.update({f"{service}/{name}": handler for name, handler in handlers.items()})


def test_one_handler_is_replaced_and_the_others_stay() -> None:
    chunks = chunks_handler(lambda request, context: iter([b"chunk"]), lambda message: message)
    theirs = grpc.unary_unary_rpc_method_handler(lambda request, context: b"")
    server = Server()
    generated = replacing_handlers(cast(grpc.Server, server), {"Fetch": chunks})
    generated.add_registered_method_handlers(  # type: ignore[attr-defined]  # not in the stubs
        "Service", {"Fetch": theirs, "Delete": theirs}
    )
    assert server.handlers == {"Service/Fetch": chunks, "Service/Delete": theirs}
    assert chunks.response_serializer is chunk_to_wire
