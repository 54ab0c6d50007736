"""Handlers of our own among those that generated code adds to a server."""

from collections.abc import Mapping
from typing import Any, TypeAlias, cast

import grpc

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


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
