"""Test our own handlers in place of generated ones."""

from collections.abc import Mapping
from typing import cast

import grpc

from services.rpc.wire import Handler, replacing_handlers


class Server:
    """Keeps what is added to it."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}

    def add_registered_method_handlers(
        self, service: str, handlers: "Mapping[str, Handler]"
    ) -> None:
        self.handlers.update({f"{service}/{name}": handler for name, handler in handlers.items()})


def test_one_handler_is_replaced_and_the_others_stay() -> None:
    ours = grpc.unary_unary_rpc_method_handler(lambda request, context: b"ours")
    theirs = grpc.unary_unary_rpc_method_handler(lambda request, context: b"theirs")
    server = Server()
    generated = replacing_handlers(cast(grpc.Server, server), {"Fetch": ours})
    generated.add_registered_method_handlers(  # type: ignore[attr-defined]  # not in the stubs
        "Service", {"Fetch": theirs, "Delete": theirs}
    )
    assert server.handlers == {"Service/Fetch": ours, "Service/Delete": theirs}
